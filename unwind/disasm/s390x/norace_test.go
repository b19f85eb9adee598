//go:build !race

package s390x_test

const raceEnabled = false
