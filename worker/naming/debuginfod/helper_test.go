package debuginfod

import (
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pg_stat_backtrace/internal/imagetest"
)

const (
	buildID = "0123456789abcdef0123456789abcdef01234567"
	otherID = "fedcba9876543210fedcba9876543210fedcba98"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder keeps the events of a client.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// count returns how many events of a kind there were.
func (r *recorder) count(kind EventKind) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// newClient makes a client with its own cache and without a limit on free space.
func newClient(t testing.TB, cfg Config) (*Client, *recorder) {
	t.Helper()
	if cfg.CacheDir == "" {
		cfg.CacheDir = filepath.Join(t.TempDir(), "cache")
	}
	if cfg.MinFree == 0 {
		cfg.MinFree = None
	}
	r := &recorder{}
	cfg.OnEvent = r.add
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, r
}

// elfFile is a small ELF file with a build-id and a section of some bytes.
func elfFile(id string, content ...byte) []byte {
	raw, _ := hex.DecodeString(id)
	note := binary.LittleEndian.AppendUint32([]byte("\x04\x00\x00\x00"), uint32(len(raw)))
	note = append(note, "\x03\x00\x00\x00GNU\x00"...)
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64, Sections: []imagetest.Section{
		{Name: ".note.gnu.build-id", Type: elf.SHT_NOTE, Data: append(note, raw...)},
		{Name: ".debug_info", Type: elf.SHT_PROGBITS, Data: content},
	}}
	return f.Bytes()
}

// clock is a time that the test sets.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// listing returns the regular files below a folder, relative to it.
func listing(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
