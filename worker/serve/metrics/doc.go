// Package metrics makes the worker's metrics for Prometheus. doc/metrics.md lists them.
//
// The number of series of a server is bounded: see the constants. No label holds a process id, a query id, or a name
// that a user of the server chose. The data directory is a label of one metric, to tell the servers of a host apart.
package metrics
