package state

import (
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"pg_stat_backtrace/ptrace/process"
)

// TestTextsInLargePlaces: with a large track_activity_query_size, the texts of many sessions take the memory of their own length.
func TestTextsInLargePlaces(t *testing.T) {
	const sessions, most = 200, 64 << 20 // bytes; the places have 200 MB
	short, long := make([]byte, maxText), []byte(strings.Repeat("x", maxText-1)+"\x00")
	copy(short, "psql")
	copy(short[nameDataLen:], "SELECT 1")
	address := func(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
	entries := make([]entry, sessions)
	for i := range entries {
		b := make([]byte, of15.size)
		binary.NativeEndian.PutUint64(b[of15.stAppname:], address(short))
		binary.NativeEndian.PutUint64(b[of15.stActivityRaw:], address(short[nameDataLen:]))
		entries[i].bytes = b
	}
	r := &Reader{offsets: of15, size: of15.size, textSize: maxText - nameDataLen, memory: process.NewMemory(os.Getpid())}
	binary.NativeEndian.PutUint64(entries[7].bytes[of15.stActivityRaw:], address(long[nameDataLen:]))
	before := heap()
	r.readTexts(entries)
	if took := heap() - before; took > most {
		t.Errorf("the texts of %d sessions take %d MB", sessions, took>>20)
	}
	for i := range entries {
		e, query, cut := &entries[i], "SELECT 1", false
		if i == 7 {
			query, cut = string(long[nameDataLen:maxText-1]), true
		}
		if e.name != "psql" || e.query != query || e.cut != cut {
			t.Errorf("session %d: %q, %d bytes of text, cut %v", i, e.name, len(e.query), e.cut)
		}
	}
	// An invalid pointer costs no other session its text.
	binary.NativeEndian.PutUint64(entries[5].bytes[of15.stActivityRaw:], 1)
	r.readTexts(entries[4:7])
	if entries[4].query != "SELECT 1" || entries[5].query != "" || entries[5].name != "psql" || entries[6].query != "SELECT 1" {
		t.Errorf("with an invalid pointer: %q, %q, %q", entries[4].query, entries[5].query, entries[6].query)
	}
	runtime.KeepAlive(r)
	runtime.KeepAlive(short)
}

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
