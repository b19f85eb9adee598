//go:build race

package codeflow_test

// raceEnabled is set with the race detector. It makes single-threaded tests ten times slower and cannot find races
// there.
const raceEnabled = true
