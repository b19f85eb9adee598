// Package web is the worker's HTTP listener: health, an index page, metrics, and profiles in the format that
// "go tool pprof" and scrapers of Go programs read. It bounds what a client can use: connections, time, requests, and
// one profile at a time.
//
// The package must not know how metrics and profiles are made: it gets both as functions.
package web
