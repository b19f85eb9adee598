package export

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// batch is a request that waits to be sent.
type batch struct {
	kind     string // type of the receiver
	created  time.Time
	profiles int
	size     int64
	path     string // file with the data; empty: the data is in the field data
	data     []byte
	inFlight bool // a sender sends it now, so it must not be dropped
}

// maxMemory is the largest size of the batches in memory, in bytes.
const maxMemory = 8 << 20

// A file name has the time of creation in nanoseconds, the number of profiles, and the type of the receiver.
const (
	batchSuffix = ".batch"
	newSuffix   = ".new"
	lockFile    = "lock"
)

// spool keeps batches until they are sent, the oldest first, up to a limit of bytes.
type spool struct {
	dir    string // empty: all batches are in memory
	limit  int64
	maxAge time.Duration
	lock   *os.File

	mu      sync.Mutex
	batches []*batch
	bytes   int64
	memory  int64
	dropped map[string]uint64 // profiles, by type of receiver
	added   chan struct{}     // closed and made anew when a batch is added
	// obsolete are the paths of files that the method clean must remove.
	obsolete []string
}

// errLocked means that another process uses the folder.
var errLocked = errors.New("another worker uses the folder")

// openSpool opens a folder and finds the batches in it. The result is never nil: with an error, it is a spool that keeps all
// batches in memory.
func openSpool(dir string, limit int64, maxAge time.Duration) (*spool, error) {
	s := &spool{limit: limit, maxAge: maxAge, dropped: make(map[string]uint64), added: make(chan struct{})}
	if dir == "" {
		return s, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, fmt.Errorf("folder for profiles that wait: %w", err)
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err == nil {
		dir = filepath.Join(parent, filepath.Base(dir))
		err = private(dir)
	}
	if err != nil {
		return s, fmt.Errorf("folder for profiles that wait: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return s, fmt.Errorf("folder for profiles that wait: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return s, fmt.Errorf("folder for profiles that wait: %s: %w", dir, errLocked)
	}
	s.dir, s.lock = dir, lock
	return s, s.scan()
}

// errPublic means that another user can change the folder. Such a user could make this worker send other files.
var errPublic = errors.New("another user can write to it")

// private returns an error if a user other than root and the worker's own user can change or replace a folder.
func private(dir string) error {
	const others = 0o022
	for path, sticky := range map[string]uint32{dir: 0, filepath.Dir(dir): unix.S_ISVTX} {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		own := st.Uid == uint32(os.Geteuid()) || st.Uid == 0
		if path == dir && st.Mode&unix.S_IFMT != unix.S_IFDIR || !own || st.Mode&others != 0 && st.Mode&sticky == 0 {
			return fmt.Errorf("%s: %w", path, errPublic)
		}
	}
	return nil
}

// scan finds the batches that an earlier worker left in the folder.
func (s *spool) scan() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("folder for profiles that wait: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		if strings.HasSuffix(e.Name(), newSuffix) {
			_ = os.Remove(path)
			continue
		}
		b, ok := parseName(e.Name())
		info, err := e.Info()
		if !ok || err != nil || !info.Mode().IsRegular() {
			continue
		}
		b.path, b.size = path, info.Size()
		if b.size == 0 { // the host lost power before the data was on disk
			s.dropped[b.kind] += uint64(b.profiles)
			_ = os.Remove(path)
			continue
		}
		s.batches = append(s.batches, b)
		s.bytes += b.size
	}
	slices.SortStableFunc(s.batches, func(a, b *batch) int { return a.created.Compare(b.created) })
	return nil
}

func (b *batch) name() string {
	return fmt.Sprintf("%020d-%d-%s%s", b.created.UnixNano(), b.profiles, b.kind, batchSuffix)
}

func parseName(name string) (*batch, bool) {
	name, ok := strings.CutSuffix(name, batchSuffix)
	parts := strings.SplitN(name, "-", 3)
	if !ok || len(parts) != 3 || parts[2] != Pyroscope && parts[2] != OTLP {
		return nil, false
	}
	created, err1 := strconv.ParseInt(parts[0], 10, 64)
	profiles, err2 := strconv.Atoi(parts[1])
	return &batch{kind: parts[2], created: time.Unix(0, created), profiles: profiles}, err1 == nil && err2 == nil
}

// add keeps a batch. An error says why the batch is not on disk. Then the batch waits in memory, or was dropped because there
// is no room. Only one goroutine at a time may call add.
func (s *spool) add(kind string, data []byte, profiles int) error {
	b := &batch{kind: kind, created: time.Now(), profiles: profiles, size: int64(len(data))}
	if err := s.makeRoom(b); err != nil {
		return err
	}
	var err error
	if s.dir != "" { // without s.mu, because a disk can be slow
		path := filepath.Join(s.dir, b.name())
		if err = writeFile(path, data); err == nil {
			b.path = path
		}
	}
	defer s.clean()
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.path == "" {
		b.data = data
		if !s.makeMemory(b.size) {
			s.dropped[kind] += uint64(profiles)
			return cmp.Or(err, errors.New("no room in memory for a profile"))
		}
		s.memory += b.size
	}
	s.batches = append(s.batches, b)
	s.bytes += b.size
	close(s.added)
	s.added = make(chan struct{})
	return err
}

// makeRoom drops the oldest batches until b is within the limit. If that is not possible, it counts b as dropped and returns an
// error.
func (s *spool) makeRoom(b *batch) error {
	defer s.clean()
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch {
	case b.size > s.limit:
		err = fmt.Errorf("a profile of %d bytes is larger than the room for all", b.size)
	case !s.fit(b.size, s.limit, &s.bytes, func(*batch) bool { return true }):
		err = errors.New("no room for a profile while older ones are being sent")
	}
	if err != nil {
		s.dropped[b.kind] += uint64(b.profiles)
	}
	return err
}

// makeMemory drops the oldest batches in memory until size more bytes fit into maxMemory, and reports whether they fit.
func (s *spool) makeMemory(size int64) bool {
	return s.fit(size, maxMemory, &s.memory, func(b *batch) bool { return b.path == "" })
}

// fit drops batches, the oldest first, until size more bytes fit into the limit, and reports whether they fit. used is the
// size of all batches for which the callback sort returns true, and fit drops only these. If size bytes cannot fit beside the
// batches that are being sent, fit drops nothing.
func (s *spool) fit(size, limit int64, used *int64, sort func(*batch) bool) bool {
	least := size
	for _, b := range s.batches {
		if b.inFlight && sort(b) {
			least += b.size
		}
	}
	return least <= limit && s.dropUntil(func() bool { return *used+size <= limit }, sort)
}

// dropUntil drops batches, the oldest first, until the callback done returns true. It drops only batches for which the
// callback sort returns true, and keeps batches that are being sent. It reports whether done has returned true at the
// end.
func (s *spool) dropUntil(done func() bool, sort func(*batch) bool) bool {
	for !done() {
		at := slices.IndexFunc(s.batches, func(b *batch) bool { return !b.inFlight && sort(b) })
		if at < 0 {
			return false
		}
		s.drop(s.batches[at])
	}
	return true
}

// writeFile makes a file that is complete or absent, also after a loss of power.
func writeFile(path string, data []byte) error {
	err := writeSynced(path+newSuffix, data)
	if err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err == nil {
		return nil
	}
	_ = os.Remove(path + newSuffix)
	return fmt.Errorf("keep a profile in %s: %w", filepath.Dir(path), withoutName(err))
}

// writeSynced writes a file and waits until the disk has its data.
func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return cmp.Or(err, f.Close())
}

// withoutName returns an error without the file's name, which differs for each batch: Run logs equal errors only once.
func withoutName(err error) error {
	var named *fs.PathError
	if errors.As(err, &named) {
		return named.Err
	}
	return err
}

// drop removes a batch that was not sent, and counts its profiles as dropped. The caller must have locked s.mu.
func (s *spool) drop(b *batch) {
	s.dropped[b.kind] += uint64(b.profiles)
	s.remove(b)
}

// remove removes a batch from the list, and adds its file to the files that clean removes. The caller must have locked s.mu.
func (s *spool) remove(b *batch) {
	at := slices.Index(s.batches, b)
	if at < 0 {
		return // it was dropped before
	}
	s.batches = slices.Delete(s.batches, at, at+1)
	s.bytes -= b.size
	if b.path == "" {
		s.memory -= b.size
		return
	}
	s.obsolete = append(s.obsolete, b.path)
}

// clean removes the files in s.obsolete. It does not lock s.mu meanwhile, because a disk can be slow.
func (s *spool) clean() {
	s.mu.Lock()
	paths := s.obsolete
	s.obsolete = nil
	s.mu.Unlock()
	for _, path := range paths {
		_ = os.Remove(path) // if this fails, the next worker drops the batch as too old
	}
}

// next returns the oldest readable batch for a type of receiver, and its data. The batch stays in flight (no other call
// returns or drops it) until the caller passes it to finish or release. If there is no such batch, next returns a
// channel that is closed when a batch is added. err is then the error of a batch that cannot be read now.
func (s *spool) next(kind string) (b *batch, data []byte, added <-chan struct{}, err error) {
	defer s.clean()
	tried := make(map[*batch]bool)
	for {
		b, added := s.take(kind, tried)
		if b == nil {
			return nil, nil, added, err
		}
		tried[b] = true
		data, readErr := b.read() // without s.mu, because a disk can be slow
		switch {
		case readErr == nil:
			return b, data, nil, nil
		case errors.Is(readErr, fs.ErrNotExist), errors.Is(readErr, errDamaged):
			s.finish(b, uint64(b.profiles))
		default: // such as too many open files: a later attempt may succeed
			s.release(b)
			err = cmp.Or(err, fmt.Errorf("read a profile in %s: %w", s.dir, withoutName(readErr)))
		}
	}
}

// take returns the oldest batch of a type of receiver that is not in the set tried, and marks it as in flight. If there is
// none, it returns a channel that is closed when a batch is added.
func (s *spool) take(kind string, tried map[*batch]bool) (b *batch, added <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	for _, b := range s.batches {
		if b.kind == kind && !b.inFlight && !tried[b] {
			b.inFlight = true
			return b, nil
		}
	}
	return nil, s.added
}

// errDamaged means that the size of a file differs from its batch's size.
var errDamaged = errors.New("file is damaged")

// read returns the data of a batch.
func (b *batch) read() ([]byte, error) {
	if b.path == "" {
		return b.data, nil
	}
	data, err := os.ReadFile(b.path)
	if err == nil && int64(len(data)) != b.size {
		err = errDamaged
	}
	return data, err
}

// expire drops batches older than maxAge, which a receiver would refuse, except batches that are being sent.
func (s *spool) expire() {
	s.dropUntil(func() bool { return false }, func(b *batch) bool { return time.Since(b.created) > s.maxAge })
}

// release notes that a batch is no longer being sent, without success. The batch waits for another attempt.
func (s *spool) release(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.inFlight = false
}

// finish removes a batch. It counts the profiles that the receiver refused as dropped.
func (s *spool) finish(b *batch, refused uint64) {
	defer s.clean()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped[b.kind] += refused
	s.remove(b)
}

// figures returns the number and size of the profiles that wait for a type of receiver, and how many were dropped.
func (s *spool) figures(kind string) (pending int, bytes int64, dropped uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	for _, b := range s.batches {
		if b.kind == kind {
			pending += b.profiles
			bytes += b.size
		}
	}
	return pending, bytes, s.dropped[kind]
}

// close lets another process use the folder.
func (s *spool) close() {
	s.clean()
	if s.lock != nil {
		_ = s.lock.Close()
	}
}
