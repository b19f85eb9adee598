// Package buildcache keeps results that depend only on the content of a program's file, by build-id, from one run of this
// program to the next. It does not know what the results mean.
//
// A folder belongs to one user, has mode 0700, and is trusted only by that user: the package verifies the owner and the
// mode of the folder and of each file through their descriptors, and follows no symbolic link there. A file appears
// when it is complete. It has a version, its whole key, its length and a checksum. A file with a wrong value in one of
// these is ignored. The number and the size of files are bounded, and the least recently used files are removed.
package buildcache

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host/rootfs"
)

// ErrForeignFolder means that the folder is not a directory of this user that other users cannot open.
var ErrForeignFolder = errors.New("not a directory of this user alone")

const (
	// LargestResult bounds the bytes of a result.
	LargestResult = 4 << 20
	// maxFiles and maxBytes bound the number of files in a folder, and their total size.
	maxFiles = 128
	maxBytes = 64 << 20

	magic   = "PGSBKEEP"
	version = 1
	header  = len(magic) + 3*4 + sha256.Size
	// largestDetail bounds Key.Detail.
	largestDetail = 4 << 10
	// modes has the permission bits of group and others, which must be 0.
	modes = unix.S_IRWXG | unix.S_IRWXO
)

// Key identifies a result.
type Key struct {
	// Kind is the subject: a short word of lower-case letters. It begins the file's name.
	Kind string
	// Build is the build-id of the file that the result is about, in lower-case hexadecimal.
	Build string
	// Detail has everything else that the result depends on, such as a hash of the file's content.
	Detail string
}

// valid reports whether the key is safe in the name of a file. It uses no regular expression, whose compilation took 2
// ms at the start of every command.
func (k *Key) valid() bool {
	const longestKind = 16
	for _, c := range []byte(k.Kind) {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return k.Kind != "" && len(k.Kind) <= longestKind && IsBuildID(k.Build) && len(k.Detail) <= largestDetail
}

// IsBuildID reports whether a text is a build-id in lower-case hexadecimal, which is safe in the name of a file.
func IsBuildID(text string) bool {
	const shortest, longest = 8, 128
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(text) >= shortest && len(text) <= longest
}

// name returns the name of the key's file.
func (k *Key) name() string {
	const kept = 8 // bytes of the hash; two keys with equal bytes share a file, and replace each other's result
	sum := sha256.Sum256([]byte(k.Detail))
	return k.Kind + "-" + k.Build + "-" + hex.EncodeToString(sum[:kept])
}

// text returns the whole key in the form that the file contains.
func (k *Key) text() []byte { return fmt.Appendf(nil, "%q %q %q", k.Kind, k.Build, k.Detail) }

// Folder is a folder of results. The folder "" keeps nothing.
type Folder string

// Load returns the result for a key, and nil if there is none. The caller must expect any content, because a checksum
// does not protect against changes by this user.
func (f Folder) Load(k Key) []byte {
	if f == "" || !k.valid() {
		return nil
	}
	dir, err := f.open()
	if err != nil {
		return nil
	}
	defer dir.Close()
	file, size, err := openFile(dir, k.name())
	if err != nil {
		return nil
	}
	defer file.Close()
	content := make([]byte, size+1)
	n, err := io.ReadFull(file, content)
	if !errors.Is(err, io.ErrUnexpectedEOF) || int64(n) != size {
		return nil // the file's size has changed
	}
	data := decode(content[:n], k.text())
	if data != nil {
		touch(file)
	}
	return data
}

// LoadForeign is Load for a folder of another user. The caller must trust its content only as far as that user. The
// path must lead through the root directory of a process of that user: see rootfs.ReadIn.
func (f Folder) LoadForeign(k Key) []byte {
	if f == "" || !k.valid() {
		return nil
	}
	content, err := rootfs.ReadIn(string(f), k.name(), fileLimit)
	if err != nil {
		return nil
	}
	return decode(content, k.text())
}

// open opens the folder. It returns ErrForeignFolder unless the folder is private to this user.
func (f Folder) open() (*os.File, error) {
	fd, err := unix.Open(string(f), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: string(f), Err: err}
	}
	dir := os.NewFile(uintptr(fd), string(f))
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || !private(&st) {
		_ = dir.Close()
		return nil, fmt.Errorf("%s: %w", f, ErrForeignFolder)
	}
	return dir, nil
}

// private reports whether a file belongs to this user and other users have no right to it.
func private(st *unix.Stat_t) bool {
	return int64(st.Uid) == int64(os.Geteuid()) && st.Mode&modes == 0
}

// openFile opens a file of the folder, and returns its size.
func openFile(dir *os.File, name string) (*os.File, int64, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), name, flags, 0)
	if err != nil {
		return nil, 0, err
	}
	file := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || !private(&st) || st.Mode&unix.S_IFMT != unix.S_IFREG ||
		st.Size < int64(header) || st.Size > fileLimit {
		_ = file.Close()
		return nil, 0, ErrForeignFolder
	}
	return file, st.Size, nil
}

// fileLimit bounds the size of a file: the header, a key whose every byte is quoted, and the result.
const fileLimit = int64(header) + 4*largestDetail + 1<<10 + LargestResult

// encode makes the content of a file.
func encode(key, data []byte) []byte {
	p := make([]byte, 0, header+len(key)+len(data))
	p = append(p, magic...)
	p = binary.LittleEndian.AppendUint32(p, version)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(key)))
	p = binary.LittleEndian.AppendUint32(p, uint32(len(data)))
	sum := checksum(key, data)
	p = append(p, sum[:]...)
	return append(append(p, key...), data...)
}

// checksum covers the key and the result. The key is quoted text, so its end is clear.
func checksum(key, data []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(key)
	h.Write(data)
	return [sha256.Size]byte(h.Sum(nil))
}

// decode returns the result in a file's content, or nil if the content is incomplete, damaged, or of another key.
func decode(p, key []byte) []byte {
	if len(p) < header || string(p[:len(magic)]) != magic {
		return nil
	}
	u32 := func(i int) uint64 { return uint64(binary.LittleEndian.Uint32(p[len(magic)+4*i:])) }
	body := p[header:]
	if u32(0) != version || u32(1) != uint64(len(key)) || u32(1)+u32(2) != uint64(len(body)) {
		return nil
	}
	if !bytes.Equal(body[:len(key)], key) {
		return nil
	}
	data := body[len(key):]
	if sum := checksum(key, data); !bytes.Equal(sum[:], p[header-sha256.Size:header]) {
		return nil
	}
	return data
}

// touch marks a file as used, at most once an hour.
func touch(file *os.File) {
	const often = time.Hour
	if info, err := file.Stat(); err == nil && time.Since(info.ModTime()) > often {
		now := unix.NsecToTimeval(time.Now().UnixNano())
		_ = unix.Futimes(int(file.Fd()), []unix.Timeval{now, now}) // after an error, prune may remove the file earlier
	}
}

// Save stores a result for a key. An older result for the key is replaced, and other files are removed if the folder is
// full.
func (f Folder) Save(k Key, data []byte) error {
	switch {
	case f == "":
		return nil
	case !k.valid():
		return fmt.Errorf("the build-id %q or the key of a result cannot be used", k.Build)
	case len(data) > LargestResult:
		return fmt.Errorf("a result of %d bytes is too large to keep", len(data))
	}
	if err := f.make(); err != nil {
		return err
	}
	dir, err := f.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	content := encode(k.text(), data)
	if err := prune(dir, maxFiles-1, maxBytes-int64(len(content))); err != nil {
		return err
	}
	return replace(dir, k.name(), content)
}

// make makes the folder if it is missing. The parent folders of root's folder get mode 0755, because a service of
// another user can have its own folder there.
func (f Folder) make() error {
	parent := filepath.Dir(string(f))
	if f == rootFolder && os.Geteuid() == 0 {
		if err := makePublic(parent); err != nil {
			return err
		}
	} else if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(string(f), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// makePublic makes a folder, and its missing parent folders, with mode 0755 under every umask.
func makePublic(dir string) error {
	const public = 0o755
	err := os.Mkdir(dir, public)
	if errors.Is(err, os.ErrNotExist) {
		if err := makePublic(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, public)
	}
	switch {
	case err == nil:
		return rootfs.SetMode(dir, unix.S_IFDIR, public)
	case errors.Is(err, os.ErrExist):
		return nil
	}
	return err
}

// temporary begins the names of files that are not complete yet.
const temporary = ".new-"

// replace writes a file under another name, and renames it.
func replace(dir *os.File, name string, content []byte) (err error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // rand.Read never fails
	unfinished := temporary + hex.EncodeToString(random[:])
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), unfinished, flags, 0o600)
	if err != nil {
		return &os.PathError{Op: "create", Path: filepath.Join(dir.Name(), unfinished), Err: err}
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(int(dir.Fd()), unfinished, 0)
		}
	}()
	file := os.NewFile(uintptr(fd), filepath.Join(dir.Name(), unfinished))
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return unix.Renameat(int(dir.Fd()), unfinished, int(dir.Fd()), name)
}
