// Package sql embeds queries of the extension's scripts that the program also runs. It knows nothing else of the
// scripts.
package sql

import _ "embed" // the files of sql/src

// Foreign is a query. It returns a row of text for each object in the extension's schema, or on one of its objects,
// that the extension's scripts did not make. The search path must be pg_catalog.
//
//go:embed src/foreign.sql
var Foreign string
