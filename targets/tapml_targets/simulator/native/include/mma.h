#include "../matrices_cuda.h"
