package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestArchive packs two folders and reads the archive as the kernel's init/initramfs.c does.
func TestArchive(t *testing.T) {
	debian, ours := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		debian + "/lib/libc.so": "library", debian + "/usr/lib/other": "x", debian + "/usr/share/doc/a/README": "no",
		debian + "/boot/vmlinuz": "no", debian + "/etc/passwd": "theirs",
		debian + "/usr/lib/postgresql/15/lib/bitcode/a.bc": "no",
		debian + "/usr/lib/postgresql/15/lib/plpgsql.so":   "yes", ours + "/etc/passwd": "ours", ours + "/init": "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("libc.so", debian+"/lib/libc.so.6"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(&out, []string{debian, ours}); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, out.Bytes())
	for name, want := range map[string]string{
		"usr/lib/libc.so": "100755 library", "usr/lib/libc.so.6": "120777 libc.so", "lib": "120777 usr/lib",
		"usr/lib/other": "100755 x", "etc/passwd": "100755 ours", "init": "100755 ", "dev/console": "020600 ",
		"usr/lib/postgresql/15/lib": "040755 ", "usr/lib/postgresql/15/lib/plpgsql.so": "100755 yes",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "boot") || strings.Contains(name, "bitcode") || strings.Contains(name, "/doc") {
			t.Errorf("%s is not left out", name)
		}
	}
}

// unpack returns mode and content of every file.
func unpack(t *testing.T, p []byte) map[string]string {
	t.Helper()
	files := make(map[string]string)
	take := func(n int) string {
		if n > len(p) {
			t.Fatalf("%d bytes of %d", len(p), n)
		}
		s := string(p[:n])
		p = p[n:]
		return s
	}
	for at := 0; ; {
		header := take(110)
		var mode, size, length int
		if _, err := fmt.Sscanf(header[:6]+" "+header[14:22]+" "+header[54:62]+" "+header[94:102], "070701 %x %x %x",
			&mode, &size, &length); err != nil {
			t.Fatalf("%q: %v", header, err)
		}
		name := strings.TrimSuffix(take(length), "\x00")
		take(-(110 + length) & 3)
		if name == "TRAILER!!!" {
			return files
		}
		content := take(size)
		take(-size & 3)
		files[name] = fmt.Sprintf("%06o %s", mode, content)
		if at++; at > 1000 {
			t.Fatal("no end")
		}
	}
}
