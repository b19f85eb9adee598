// Package busy counts the captures, observations and batches of samples that must end before this program is suspended.
// A suspended program would leave its target stopped, or an event enabled. The package does not know what the work is.
package busy
