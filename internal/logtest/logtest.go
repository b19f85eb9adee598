// Package logtest has a log whose lines a test can read.
package logtest

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/rs/zerolog"
)

// Line is a line of a log.
type Line struct {
	Level, Message string
	// Error and Address are the fields error and address of the line; empty: the line does not have the field.
	Error, Address string
	// Fields has all fields, with the types of package json.
	Fields map[string]any
}

// writer passes lines to a function, one at a time.
type writer struct {
	mu   sync.Mutex
	pass func(Line)
}

// New returns a log that passes each line to a function, one at a time.
func New(pass func(Line)) zerolog.Logger { return zerolog.New(&writer{pass: pass}) }

// Write implements io.Writer. Each call has one line.
func (w *writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var l Line
	if err := json.Unmarshal(b, &l.Fields); err != nil {
		return 0, io.ErrUnexpectedEOF
	}
	for name, field := range map[string]*string{
		"level": &l.Level, "message": &l.Message, "error": &l.Error, "address": &l.Address,
	} {
		*field, _ = l.Fields[name].(string)
	}
	w.pass(l)
	return len(b), nil
}
