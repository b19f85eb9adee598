// Package metrics makes the worker's metrics for Prometheus. doc/metrics.md lists them.
//
// The number of series of a server is limited; see the constants in names.go. No label has a process id, a query id, or a name
// that a user of the server chose. Only the metric server_info has the data directory as a label, to distinguish the servers
// of a host.
package metrics
