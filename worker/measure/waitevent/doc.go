// Package waitevent shows how long the processes of a server wait, and for what: it finds a server's variables, names
// the events that package waits counts, and prints tables.
package waitevent
