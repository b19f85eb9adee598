// Package serving tests the worker's HTTP listener from outside: with real servers, a real Prometheus and "go tool
// pprof". It holds tests only.
package serving
