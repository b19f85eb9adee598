package host

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// TestCatch checks that the error of the work, or its panic, is returned, and that InjectPanic replaces the work.
func TestCatch(t *testing.T) {
	if err := Catch("nothing", func() error { return nil }); err != nil {
		t.Error(err)
	}
	if err := Catch("an error", func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	var failed *Panic
	err := Catch("a write", func() error { panic("oops") })
	if !errors.As(err, &failed) || failed.Place != "a write" || failed.Value != "oops" ||
		!strings.Contains(err.Error(), "TestCatch") {
		t.Errorf("got %v", err)
	}
	restore := InjectPanic(func(place string) {
		if place == "injected" {
			panic(io.EOF)
		}
	})
	ran := false
	work := func() error { ran = true; return nil }
	if err := Catch("injected", work); !errors.As(err, &failed) || ran {
		t.Errorf("got %v, ran %v", err, ran)
	}
	if err := Catch("another place", work); err != nil || !ran {
		t.Errorf("got %v, ran %v", err, ran)
	}
	restore()
	if err := Catch("injected", work); err != nil {
		t.Error(err)
	}
}
