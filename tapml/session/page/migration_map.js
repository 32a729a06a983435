"use strict";
// The migration map: every call site, what it reads, and whether it has moved.

const map = new GraphMap({
  noun: "call site",
  id: "find-site",
  title: "Migration map",
  describe: site => {
    const operator = session.byName.get(site.label);
    const state = operator ? now(operator).state : "waiting";
    const { glyph, means, look } = STATES[state];
    const hand = Boolean(operator && operator.written);
    return {
      status: state,
      glyph,
      look,
      classes: hand ? ["hand"] : [],
      marks: hand ? ["✎"] : [],
      lines: [`${means}${hand ? ", kernel written by hand" : ""}`],
    };
  },
  select: site => {
    location.hash = `operator-${encodeURIComponent(site.label)}`;
  },
  link: site => linkTo({ name: site.label }, site.name),
});

function drawMap() {
  const drawn = map.draw(session.maps);
  const used = Object.entries(STATES).filter(([state]) =>
    session.operators.some(each => now(each).state === state),
  );
  const hand = session.operators.some(each => each.written);
  return (
    drawn && [
      drawn,
      legend([
        ...used.map(([state, { glyph, look, means }]) => [state, glyph, look, means]),
        ...(hand ? [["hand", "✎", "", "kernel written by hand"]] : []),
      ]),
      howToMove("Each box is a call site; select one to open its operator."),
    ]
  );
}
