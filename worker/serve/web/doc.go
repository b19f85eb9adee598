// Package web is the worker's HTTP listener: health, an index page, metrics, and profiles in the format that
// "go tool pprof" and scrapers of Go programs read. It limits the connections, requests and time that a client can use, and
// makes one profile at a time.
//
// The package must not know how metrics and profiles are made: it gets both as functions.
package web
