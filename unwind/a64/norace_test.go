//go:build !race

package a64_test

const raceEnabled = false
