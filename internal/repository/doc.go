// Package repository tests the files of the repository against each other: CONTRIBUTING.md against the Makefile and the
// sources, and META.json against the extension.
package repository
