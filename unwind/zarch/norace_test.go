//go:build !race

package zarch_test

const raceEnabled = false
