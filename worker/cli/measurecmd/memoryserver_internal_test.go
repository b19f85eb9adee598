package measurecmd

import (
	"strings"
	"testing"
)

// TestUnreadableMemory expects each format to say that processes could not be read.
func TestUnreadableMemory(t *testing.T) {
	t.Parallel()
	memory := &ServerMemoryDocument{Processes: []memoryOfProcess{}, Unreadable: 2}
	for format, want := range map[string]string{
		"text": "the memory of 2 processes could not be read", "csv": "the memory of 2 processes could not be read", "json": `"unreadable":2`,
	} {
		f := memoryFlags{format: format}
		var out, errOut strings.Builder
		if err := f.printServer(&out, &errOut, memory); err != nil || !strings.Contains(out.String()+errOut.String(), want) {
			t.Errorf("%s: %v, %q, %q", format, err, out.String(), errOut.String())
		}
		if lines := strings.Count(out.String(), "\n"); format == "csv" && lines != 1 {
			t.Errorf("csv has %d lines: %q", lines, out.String())
		}
	}
}
