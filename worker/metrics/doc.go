// Package metrics makes the worker's metrics for Prometheus. doc/metrics.md lists them.
//
// The number of series of a server is bounded: see the constants. No label holds a process id, a query id, or a name
// that a user of the server chose.
package metrics
