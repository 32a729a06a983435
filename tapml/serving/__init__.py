"""A moved model behind HTTP, with the requests and answers of OpenAI's API."""
