package spool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestErrorsRepeatNoContent: the file may be another one, which its user cannot read.
func TestErrorsRepeatNoContent(t *testing.T) {
	const secret = "53cr3t"
	dir := t.TempDir()
	for _, text := range []string{
		secret, strings.Repeat(secret+"\n", 9), "1\n" + secret + "\n3\n\n\n\n", "1\n2\n3\n\n\n\n\n\n\noutside " + secret + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, pidName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if info, err := Find(dir); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %+v, %v", text, info, err)
		}
	}
}
