//go:build !race

package epilogue_test

const raceEnabled = false
