//go:build !race

package aarch64_test

const raceEnabled = false
