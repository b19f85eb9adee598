package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFindMapping: the search finds the mapping that Maps finds, wherever the pieces of the file end.
func TestFindMapping(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&lines, "%x-%x r-xp 00000000 08:02 %d /%s\n", i<<12, (i+1)<<12, i+1, strings.Repeat("d", i%300))
	}
	text := lines.String()
	for _, piece := range []int{1 << 20, 4096, 777} {
		for _, inode := range []uint64{1, 1000, 2000, 2001} {
			rest := strings.NewReader(text)
			m, found, err := findMapping(func(m *Mapping) bool { return m.Inode == inode }, len(text)+1,
				func(p []byte) (int, error) { n, _ := rest.Read(p[:min(len(p), piece)]); return n, nil })
			if err != nil || found != (inode <= 2000) || found && m.Start != (inode-1)<<12 {
				t.Errorf("pieces of %d, inode %d: %+v %v %v", piece, inode, m, found, err)
			}
		}
	}
	own, found, err := FindMapping(os.Getpid(), func(m *Mapping) bool { return m.Perms&Exec != 0 })
	if err != nil || !found || own.Path == "" {
		t.Errorf("%+v %v %v", own, found, err)
	}
}

// TestFindMappingIsBounded: endless text and an endless line take a piece of memory only.
func TestFindMappingIsBounded(t *testing.T) {
	none := func(*Mapping) bool { return false }
	line := []byte("00400000-00452000 r-xp 00000000 08:02 173521 /" + strings.Repeat("d", 3900) + "\n")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	read := 0
	_, found, err := findMapping(none, maxSearched, func(p []byte) (int, error) {
		n := 0
		for len(p)-n >= len(line) {
			n += copy(p[n:], line)
		}
		read += n
		return n, nil
	})
	runtime.ReadMemStats(&after)
	if found || !errors.Is(err, ErrFormat) || read > maxSearched+bufferSize {
		t.Errorf("%v after %d bytes: %v", found, read, err)
	}
	if took := int64(after.HeapSys) - int64(before.HeapSys); took > 32<<20 {
		t.Errorf("the heap grew by %d bytes", took)
	}
	_, found, err = findMapping(none, maxSearched, func(p []byte) (int, error) {
		return copy(p, bytes.Repeat([]byte("d"), len(p))), nil
	})
	if found || !errors.Is(err, ErrFormat) {
		t.Errorf("an endless line: %v %v", found, err)
	}
	if _, _, err := findMapping(none, maxSearched, func([]byte) (int, error) { return 0, unix.EACCES }); err == nil {
		t.Error("no error of the read")
	}
}

// TestSmallFilesAreBounded: a file that is small for every process is not read whole if it is large.
func TestSmallFilesAreBounded(t *testing.T) {
	t.Parallel()
	name := t.TempDir() + "/status"
	if err := os.WriteFile(name, make([]byte, maxSmall+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readFile(name); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
	if text, err := readLarge(name); err != nil || len(text) != maxSmall+1 {
		t.Error(len(text), err)
	}
}
