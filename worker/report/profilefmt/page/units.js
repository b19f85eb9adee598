// units.js: quantities and shares as people read them.

// The units of pprof, in nanoseconds and in bytes.
const timeUnits = new Map([
  ["nanoseconds", 1], ["ns", 1], ["microseconds", 1e3], ["us", 1e3], ["milliseconds", 1e6], ["ms", 1e6],
  ["seconds", 1e9], ["s", 1e9], ["minutes", 60e9], ["hours", 3600e9],
]);
const byteUnits = new Map([
  ["bytes", 1], ["byte", 1], ["B", 1], ["kilobytes", 1024], ["kB", 1024], ["KB", 1024],
  ["megabytes", 1 << 20], ["MB", 1 << 20],
]);

// The units in which people read a quantity, with the quantity from which each is used. 100 s reads better than
// 1.67 min.
const durations = [
  { name: "ns", size: 1, from: 0 }, { name: "µs", size: 1e3, from: 999.5 }, { name: "ms", size: 1e6, from: 999.5e3 },
  { name: "s", size: 1e9, from: 999.5e6 }, { name: "min", size: 60e9, from: 120e9 },
  { name: "h", size: 3600e9, from: 7200e9 },
];
const sizes = ["B", "kB", "MB", "GB", "TB"].map((name, i) => {
  return { name, size: 1024 ** i, from: i && 0.9995 * 1024 ** i };
});

// threeDigits prints a number with three significant digits, and whole numbers as such.
function threeDigits(x) {
  const a = Math.abs(x);
  if (Number.isInteger(x) || a >= 99.95) return x.toFixed(0);
  return a >= 9.995 ? x.toFixed(1) : x.toFixed(2);
}

// quantity prints a value for people. 1 kB is 1024 bytes, as in PostgreSQL.
function quantity(v, unit) {
  if (v === 0) return "0";
  const scale = (x, units) => {
    const unit = units.findLast(({ from }) => Math.abs(x) >= from) || units[0];
    return threeDigits(x / unit.size) + "\u00a0" + unit.name;
  };
  if (timeUnits.has(unit)) return scale(v * timeUnits.get(unit), durations);
  if (byteUnits.has(unit)) return scale(v * byteUnits.get(unit), sizes);
  const number = v.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return unit === "count" || unit === "" ? number : number + "\u00a0" + unit;
}

// shortName leaves out the folders of a Go package.
function shortName(name) {
  return name.replace(/^(?:[\w.~%-]+\/)+(?=[\w~%-]+\.[\w(])/, "");
}

// percent prints a share with one digit, and says when it is small but not nothing.
function percent(v, total) {
  if (!total) return "";
  if (v === 0) return "0\u00a0%";
  const share = (100 * v) / total;
  if (share > 0 && share < 0.05) return "<0.1\u00a0%";
  return share.toFixed(1) + "\u00a0%";
}
