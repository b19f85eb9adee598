//go:build race

package rlimits_test

const raceDetector = true
