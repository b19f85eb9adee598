// Package waitevent measures how long the processes of a server wait for each wait event. It finds the variables of the server that
// package ptrace/measure/waits needs, adds the names of events to the figures of that package, and prints tables.
package waitevent
