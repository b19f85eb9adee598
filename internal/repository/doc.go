// Package repository tests the files of the repository against each other: CONTRIBUTING.md against the Makefile and the
// sources, META.json against the extension, and the dashboards against the metrics of a worker.
package repository
