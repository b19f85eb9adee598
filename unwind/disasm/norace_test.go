//go:build !race

package disasm_test

const raceEnabled = false
