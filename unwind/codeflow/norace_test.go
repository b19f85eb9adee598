//go:build !race

package codeflow_test

const raceEnabled = false
