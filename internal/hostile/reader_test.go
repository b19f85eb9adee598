package hostile

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming/debuginfod"
)

// envReader makes this test program read a file by the reader of that name. Commands reach these readers only with a
// server or a running program.
const envReader = "HOSTILE_TEST_READER"

// readers read a file, and return how much they found.
var readers = map[string]func(path string) (int, error){
	"perf map": readPerfMap, "jit": readJIT, "gopclntab": readGo, "debug file": readDebugFile,
	"cache": readCache,
}

// read runs one reader, and returns the exit status: 1 if the reader refuses the file.
func read(reader, path string) int {
	const most = 1 << 30 // a reader without a bound must not take the memory of the machine
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	n, err := readers[reader](path)
	fmt.Println(n, "found")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func readPerfMap(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	m, n := symbol.ParsePerfMap(string(text)), 0
	for addr := range uint64(textSize) {
		if _, _, ok := m.Find(textAddr + addr); ok {
			n++
		}
	}
	return n, nil
}

// readJIT reads the file as the memory of a process from address 0, with the descriptor at jitList. It keeps all objects.
func readJIT(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	memory := bytes.NewReader(data)
	copied := func(addr uint64, p []byte) bool {
		n, _ := memory.ReadAt(p, int64(min(addr, 1<<62)))
		return n == len(p)
	}
	entries, err := symbol.JITEntries(copied, binary.LittleEndian, jitList)
	var objects []*symbol.JITObject
	for _, e := range entries[:min(len(entries), 128)] { // as many as a process can list
		o, openErr := symbol.OpenJIT(copied, e, elf.EM_X86_64)
		err = errors.Join(err, openErr)
		if o != nil {
			objects = append(objects, o)
		}
	}
	return len(objects), err
}

func openImage(path string) (*elfimage.Image, func(), error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	m, err := elfimage.Open(f, path)
	return m, func() { _ = f.Close() }, err
}

func readGo(path string) (int, error) {
	m, end, err := openImage(path)
	if err != nil {
		return 0, err
	}
	defer end()
	t, err := golang.NewTable(m)
	if err != nil {
		return 0, err
	}
	n := 0
	for i := range min(t.Functions(), 1000) {
		f, fnErr := t.Function(i)
		if fnErr != nil {
			err = fnErr
			continue
		}
		frames, fnErr := t.Frames(f.Entry)
		if fnErr != nil {
			err = fnErr
		}
		n += len(frames)
	}
	return n, err
}

func readDebugFile(path string) (int, error) {
	m, end, err := openImage(path)
	if err != nil {
		return 0, err
	}
	defer end()
	o := elfimage.SearchOptions{
		Folders: []string{os.TempDir()}, Open: func(path string) (elfimage.File, error) { return os.Open(path) },
	}
	r, err := elfimage.FindDebugFile(m, path, o)
	if err == nil {
		_ = r.Close()
	}
	r, supErr := elfimage.FindSupplement(m, path, o)
	if supErr == nil {
		_ = r.Close()
	}
	return 0, errors.Join(err, supErr)
}

// cachedID is the build-id of the files in the caches of TestDebuginfodCache.
const cachedID = "0123456789abcdef0123456789abcdef01234567"

// readCache uses the file as debuginfod's cached debug file, and as the other files of a cache. It finds the file if it is
// returned for its build-id.
func readCache(path string) (int, error) {
	dir := filepath.Dir(path)
	config := debuginfod.Config{URLs: []string{"http://127.0.0.1:9"}, CacheDir: dir, CacheSize: 1 << 50}
	client, err := debuginfod.New(config)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	if err := os.MkdirAll(filepath.Join(dir, cachedID), 0o700); err != nil {
		return 0, err
	}
	for _, name := range []string{"cache_miss_s", filepath.Join(cachedID, "debuginfo"), filepath.Join(cachedID, "executable")} {
		if err := os.Rename(path, filepath.Join(dir, name)); err != nil {
			return 0, err
		}
		path = filepath.Join(dir, name)
		again, err := debuginfod.New(config) // examines the whole cache
		if err != nil {
			return 0, err
		}
		again.Close()
		if kind := debuginfod.Kind(filepath.Base(name)); kind == debuginfod.DebugInfo || kind == debuginfod.Executable {
			_ = client.Cached(kind, cachedID)
			if _, err = client.Fetch(context.Background(), kind, cachedID); err == nil {
				return 1, nil
			}
		}
	}
	return 0, errors.New("the cache has no such file")
}

// TestDebuginfodCache: files that other programs have put into the cache of debuginfod.
func TestDebuginfodCache(t *testing.T) {
	t.Parallel()
	link := func(target string) func(string) error {
		return func(path string) error { return os.Symlink(target, path) }
	}
	sparse := func(head []byte, size int64) func(string) error {
		return func(path string) error {
			return errors.Join(os.WriteFile(path, head, 0o600), os.Truncate(path, size))
		}
	}
	id, err := hex.DecodeString(cachedID)
	if err != nil {
		t.Fatal(err)
	}
	forged := image(imagetest.Section{Name: ".note.gnu.build-id", Type: elf.SHT_NOTE, Data: slices.Concat(
		[]byte{4, 0, 0, 0, byte(len(id)), 0, 0, 0, 3, 0, 0, 0, 'G', 'N', 'U', 0}, id)})
	for name, c := range map[string]struct {
		put    func(path string) error
		status int
	}{
		"queue":             {func(path string) error { return syscall.Mkfifo(path, 0o600) }, 1},
		"folder":            {func(path string) error { return os.Mkdir(path, 0o700) }, 1},
		"device":            {link("/dev/zero"), 1},
		"link to itself":    {link("file"), 1},
		"link to a program": {link(os.Args[0]), 1},
		"size without data": {sparse(nil, 1<<40), 1},
		"forged build-id":   {sparse(forged, 1<<40), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			if err := c.put(path); err != nil {
				t.Fatal(err)
			}
			r := run(t, []string{envReader + "=cache"}, os.Args[0], path)
			t.Logf("%d MB of memory in %s", r.memory>>20, r.took)
			if r.status != c.status || r.memory > readerMemory {
				t.Errorf("status %d, want %d; %d MB of memory: %s", r.status, c.status, r.memory>>20, r.err.head.String())
			}
		})
	}
}

// jitList is the address of the descriptor, and where the other parts of the memory follow.
const (
	jitList   = 0x100
	jitEntry  = 0x200
	jitObject = 0x10000
)

// jitMemory is the memory of a process that lists an object so many times. In a circle, the last entry names the first.
func jitMemory(count int, object []byte, size uint64, circle bool) []byte {
	data := make([]byte, jitObject, jitObject+len(object))
	word := binary.LittleEndian.PutUint64
	word(data[jitList:], 1)
	word(data[jitList+16:], jitEntry)
	for i := range count {
		e, next := data[jitEntry+32*i:], uint64(jitEntry+32*(i+1))
		if i == count-1 {
			next = 0
			if circle {
				next = jitEntry
			}
		}
		word(e, next)
		word(e[16:], jitObject)
		word(e[24:], size)
	}
	return append(data, object...)
}

// goTable makes a table that states count functions and has entries for fewer.
func goTable(count, entries uint64) []byte {
	const head, functions = 72, 8
	data := binary.LittleEndian.AppendUint32(nil, 0xfffffff1)
	data = append(data, 0, 0, 1, 8)
	at := uint64(head) + functions*entries
	for _, v := range []uint64{count, 1, textAddr, at + 64, at + 64, at + 64, at + 64, head} {
		data = binary.LittleEndian.AppendUint64(data, v)
	}
	for i := range entries {
		data = binary.LittleEndian.AppendUint32(data, uint32(i))
		data = binary.LittleEndian.AppendUint32(data, uint32(at-head))
	}
	return append(data, make([]byte, 64)...)
}

// goImage makes an image with such a table at its address.
func goImage(table []byte) []byte {
	const at = 0x100000
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64, Programs: []imagetest.Program{
		{Type: elf.PT_LOAD, Flags: elf.PF_R, Vaddr: at, Filesz: uint64(len(table)), Memsz: uint64(len(table)), Data: table},
	}, Sections: []imagetest.Section{
		{Name: ".text", Type: elf.SHT_NOBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Addr: textAddr, Size: textSize},
		{Name: ".gopclntab", Type: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC, Addr: at, Data: table},
	}}
	return f.Bytes()
}

// TestReaders: perf maps, JIT lists and objects, tables of Go, and links to debug files.
func TestReaders(t *testing.T) {
	t.Parallel()
	section := func(name string, data []byte) []byte {
		return image(imagetest.Section{Name: name, Type: elf.SHT_PROGBITS, Data: data})
	}
	zipped := func(name string, size int) []byte {
		return image(packed(name, elf.COMPRESS_ZLIB, size, deflate(t, repeat(make([]byte, 1<<16), size>>16))))
	}
	object := image(nameless(60_000, 1000)...)
	long := bytes.Repeat([]byte("N"), 1<<20)
	for name, c := range map[string]struct {
		reader string
		data   []byte
		status int
	}{
		"perf map, one line without an end": {"perf map", append([]byte("1000 10 "), long...), 0},
		"perf map, many lines":              {"perf map", bytes.Repeat([]byte("1 1 x\n"), 2<<20), 0},
		"perf map, empty lines":             {"perf map", bytes.Repeat([]byte("\n"), 1<<20), 0},
		"perf map, largest sizes":           {"perf map", []byte(strings.Repeat("1000 ffffffffffffff x\n", 1000)), 0},
		"list, circle":                      {"jit", jitMemory(3, []byte("x"), 1, true), 1},
		"list, entry that names itself":     {"jit", jitMemory(1, object[:64], uint64(len(object)), true), 1},
		"list, one object many times":       {"jit", jitMemory(64, object, uint64(len(object)), false), 1},
		"object, size without data":         {"jit", jitMemory(128, object[:64], 16<<20, false), 1},
		"object, largest size":              {"jit", jitMemory(1, object[:64], 1<<63, false), 1},
		"go, count without data":            {"gopclntab", goImage(goTable(1<<24, 1)), 1},
		"go, largest count":                 {"gopclntab", goImage(goTable(1<<63, 1)), 1},
		"go, compressed":                    {"gopclntab", zipped(".gopclntab", 64<<20), 1},
		"link, name without an end":         {"debug file", section(".gnu_debuglink", long), 1},
		"link, compressed":                  {"debug file", zipped(".gnu_debuglink", 64<<20), 1},
		"dwz, name without an end":          {"debug file", section(".gnu_debugaltlink", long), 1},
		"dwz, compressed":                   {"debug file", zipped(".gnu_debugaltlink", 64<<20), 1},
		"dwz, to itself":                    {"debug file", section(".gnu_debugaltlink", []byte("file\x00\x01\x02")), 1},
		"dwz, to a folder":                  {"debug file", section(".gnu_debugaltlink", []byte("..\x00\x01\x02")), 1},
		"sup, checksum without data":        {"debug file", section(".debug_sup", []byte("\x05\x00\x00x\x00\xff\xff\xff\xff\x0f")), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := measureReader(t, c.reader, write(t, "file", c.data))
			if count := strings.Contains(name, "count"); r.status != c.status ||
				count && !strings.HasSuffix(r.err.head.String(), " functions\n") {
				t.Errorf("status %d, want %d: %s", r.status, c.status, r.err.head.String())
			}
		})
	}
}
