package incident

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/report/render"
)

// Limits of files.
const (
	fileLimit = 4 << 20  // of a JSON file that is written
	readLimit = 16 << 20 // of a JSON file that is read
)

var (
	// ErrDirectory means that the directory of incidents cannot be trusted or used.
	ErrDirectory = errors.New("the directory of incidents cannot be used")
	// ErrNotFound means that there is no incident of a name.
	ErrNotFound = errors.New("no such incident")
	// ErrUnreadable means that a file is not an incident of a known format.
	ErrUnreadable = errors.New("unreadable incident")
	// ErrNoSpace means that too little space would stay free.
	ErrNoSpace = errors.New("not enough free space for an incident")
)

// Dir is a directory of incidents, and its bounds.
type Dir struct {
	Path string
	// Keep and Size bound the number of incidents and their bytes. MinFree must stay free in the file system.
	Keep          int
	Size, MinFree int64
}

// DirOf returns the path of the directory of a server's incidents below a state directory.
func DirOf(stateDir, systemID string) string {
	return filepath.Join(stateDir, "cluster="+systemID, "incidents")
}

// Write writes an incident as JSON and as a page, each under a temporary name first, and removes the oldest ones beyond the
// bounds. It returns the path of the page.
func (d *Dir) Write(i *Incident) (string, error) {
	if !validID(i.ID) {
		return "", fmt.Errorf("%w: bad name %q", ErrDirectory, i.ID)
	}
	if err := d.make(); err != nil {
		return "", err
	}
	text, page, err := encode(i)
	if err != nil {
		return "", err
	}
	size := int64(len(text) + len(page))
	if err := d.prune(size); err != nil {
		return "", err
	}
	if err := d.free(size); err != nil {
		return "", err
	}
	html := filepath.Join(d.Path, i.ID+".html")
	if err := writeFile(html, page); err != nil {
		return "", err
	}
	if err := writeFile(filepath.Join(d.Path, i.ID+".json"), text); err != nil { // last: an incident counts once it has this file
		os.Remove(html)
		return "", err
	}
	return html, nil
}

// Complete writes an incident that has got further parts again. It does nothing if the incident was removed meanwhile.
func (d *Dir) Complete(i *Incident) error {
	if _, err := os.Lstat(filepath.Join(d.Path, i.ID+".json")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := d.Write(i)
	return err
}

// make makes the directory if it is missing, and verifies that it belongs to this user alone.
func (d *Dir) make() error {
	if err := os.Mkdir(d.Path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(d.Path, &st); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDirectory, d.Path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("%w: %s must be a directory of this user with mode 0700", ErrDirectory, d.Path)
	}
	return nil
}

// free verifies that enough space stays free when a file of a size is written.
func (d *Dir) free(size int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(d.Path, &s); err == nil {
		free := int64(s.Bavail) * int64(s.Bsize) //nolint:unconvert // its type depends on the architecture
		if free-size < d.MinFree {
			return fmt.Errorf("%w: %d MB are free, and %d MB must stay free", ErrNoSpace, free>>20, d.MinFree>>20)
		}
	}
	return nil
}

// encode returns both forms. An incident that is too large loses the larger part of its history.
func encode(i *Incident) (text, page []byte, err error) {
	for {
		text, err = json.MarshalIndent(i, "", " ")
		if err != nil {
			return nil, nil, fmt.Errorf("incident: %w", err)
		}
		if len(text) <= fileLimit {
			break
		}
		switch n := len(i.History.Spans); {
		case n > 0:
			i.History.Spans, i.History.LeftOut = i.History.Spans[(n+1)/2:], i.History.LeftOut+(n+1)/2
		case len(i.Sessions) > 1:
			n := (len(i.Sessions) + 1) / 2
			i.SessionsLeftOut += len(i.Sessions) - n
			i.Sessions = i.Sessions[:n]
		default:
			return nil, nil, fmt.Errorf("%w: %d bytes are too large", ErrUnreadable, len(text))
		}
	}
	text = append(render.VisibleJSON(text), '\n')
	return text, Page(i), nil
}

// writeFile makes a file that is complete or not there.
func writeFile(path string, data []byte) error {
	temporary := path + ".tmp"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("incident: %w", err)
	}
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("incident: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		os.Remove(temporary)
		return fmt.Errorf("incident: %w", err)
	}
	return nil
}

// Entry is an incident in a directory.
type Entry struct {
	ID   string
	Size int64 // of all its files
}

// List returns the incidents of a directory, the oldest first. There are none if the directory does not exist.
func (d *Dir) List() ([]Entry, error) {
	names, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("incidents: %w", err)
	}
	sizes, whole := map[string]int64{}, map[string]bool{}
	for _, n := range names {
		id, kind, _ := strings.Cut(n.Name(), ".")
		if !n.Type().IsRegular() || !validID(id) || kind != "json" && kind != "html" && kind != "json.tmp" && kind != "html.tmp" {
			continue // not ours
		}
		if info, err := n.Info(); err == nil {
			sizes[id] += info.Size()
			whole[id] = whole[id] || kind == "json"
		}
	}
	var list []Entry
	for id, size := range sizes {
		if whole[id] {
			list = append(list, Entry{id, size})
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// prune removes the oldest incidents, so that one more of a size has room, and what a killed worker left half made.
func (d *Dir) prune(size int64) error {
	left, _ := filepath.Glob(filepath.Join(d.Path, "*.tmp"))
	for _, path := range left {
		if st, err := os.Lstat(path); err == nil && time.Since(st.ModTime()) > time.Hour { // another process may write one now
			os.Remove(path)
		}
	}
	list, err := d.List()
	if err != nil {
		return err
	}
	var total int64
	for _, e := range list {
		total += e.Size
	}
	for len(list) > 0 && (d.Keep > 0 && len(list) >= d.Keep || d.Size > 0 && total+size > d.Size) {
		for _, kind := range []string{".json", ".html"} {
			if err := os.Remove(filepath.Join(d.Path, list[0].ID+kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("incidents: %w", err)
			}
		}
		total -= list[0].Size
		list = list[1:]
	}
	return nil
}

// Read reads an incident. The error wraps ErrNotFound or ErrUnreadable.
func (d *Dir) Read(id string) (*Incident, error) {
	f, path, err := d.open(id)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, readLimit))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	i := new(Incident)
	if err := json.Unmarshal(text, i); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnreadable, path, err)
	}
	if err := i.check(id, path); err != nil {
		return nil, err
	}
	if deeper(i.Forest, maxNodes) {
		return nil, fmt.Errorf("%w: %s has a forest of waits that is too large", ErrUnreadable, path)
	}
	return i, nil
}

// deeper reports whether a forest that was read is too deep to print, or has a hole.
func deeper(list []*Node, levels int) bool {
	return levels == 0 && len(list) > 0 || slices.ContainsFunc(list, func(n *Node) bool { return n == nil || deeper(n.Blocked, levels-1) })
}
