//go:build race

package epilogue_test

// raceEnabled: the race detector makes what runs in one goroutine ten times slower without finding anything there.
const raceEnabled = true
