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
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/render"
)

// Limits of files.
const (
	fileLimit = 4 << 20  // bytes of a JSON file that is written
	readLimit = 16 << 20 // bytes of a JSON file that is read
	// Bounds of a JSON file that is read, far above those of a file that is written. A forged file would otherwise take a hundred times
	// its size in memory, or make the printed result as much larger by its indentation.
	maxDepth    = 1000
	maxElements = 100_000 // of all lists
	maxMembers  = 400_000 // of all objects
)

var (
	// ErrDirectory means that the directory of incidents cannot be trusted or used.
	ErrDirectory = errors.New("the directory of incidents cannot be used")
	// ErrNotFound means that the directory has no incident with this name.
	ErrNotFound = errors.New("no such incident")
	// ErrUnreadable means that a file is not an incident of a known format.
	ErrUnreadable = errors.New("unreadable incident")
	// ErrNoSpace means that less than Dir.MinFree would stay free.
	ErrNoSpace = errors.New("not enough free space for an incident")
)

// Dir is a directory of incidents, with its limits.
type Dir struct {
	Path string
	// Keep bounds the number of incidents, and Size their bytes; 0: no bound. MinFree is the number of bytes that must stay free in
	// the file system.
	Keep          int
	Size, MinFree int64
	// Ordinary means that the caller of WriteText is no superuser. A part of the limits of text files stays for superusers. Role is the
	// oid of the caller. One role that is no superuser may have half of the rest; 0: there is no such limit.
	Ordinary bool
	Role     uint32
}

// DirOf returns the path of the directory of a server's incidents below a state directory.
func DirOf(stateDir, systemID string) string {
	return filepath.Join(stateDir, "cluster="+systemID, "incidents")
}

// Write writes an incident as JSON and as an HTML page. Before that, it removes old incidents beyond the bounds. It returns the path of
// the page. Errors include ErrDirectory and ErrNoSpace.
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
	if err := d.prune(i.ID, size); err != nil {
		return "", err
	}
	if err := d.free(size); err != nil {
		return "", err
	}
	html, record := filepath.Join(d.Path, i.ID+".html"), filepath.Join(d.Path, i.ID+".json")
	_, before := os.Lstat(record)
	if err := writeFile(html, page); err != nil {
		return "", err
	}
	if err := writeFile(record, text); err != nil { // last, because List omits an incident without it
		if before != nil { // otherwise the page belongs to the JSON of an earlier Write
			os.Remove(html)
		}
		return "", err
	}
	return html, nil
}

// Complete writes an incident again after further parts were added to it, such as the profile. It does nothing if the files of the
// incident were removed meanwhile.
func (d *Dir) Complete(i *Incident) error {
	if _, err := os.Lstat(filepath.Join(d.Path, i.ID+".json")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := d.Write(i)
	return err
}

// End writes an incident again with its end. It does nothing if the files of the incident were removed meanwhile.
func (d *Dir) End(id string, ended time.Time) error {
	i, err := d.Read(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	i.Ended = &ended
	return d.Complete(i)
}

// make makes the directory if it is missing, and verifies that only this user can read and write it.
func (d *Dir) make() error {
	if err := os.Mkdir(d.Path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return failed(d.missing(err))
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

// missing returns an error that names the state directory or its folder for the server if the reason of err is that one of them does
// not exist: then the recorder could not make it, and has logged why. Otherwise it returns err.
func (d *Dir) missing(err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cluster := filepath.Dir(d.Path)
	for _, dir := range []string{filepath.Dir(cluster), cluster} {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s does not exist: no history is recorded", dir)
		}
	}
	return err
}

// free returns ErrNoSpace if less than MinFree would stay free after a write of size bytes. It returns nil if the free space cannot
// be read.
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

// encode returns an incident as JSON and as an HTML page. If the JSON is larger than fileLimit, encode removes plans until they have
// at most a quarter of fileLimit. Then it removes the older half of the history's spans, again and again, and then sessions in the
// same way. At last it removes the other plans, stacks of the profile, and stacks. It removes these parts from the incident i too.
func encode(i *Incident) (text, page []byte, err error) {
	for {
		text, err = json.MarshalIndent(i, "", " ")
		if err != nil {
			return nil, nil, fmt.Errorf("incident: %w", err)
		}
		text = append(render.VisibleJSON(text), '\n') // before the comparison, since it can make the text several times as large
		if len(text) <= fileLimit {
			return text, Page(i), nil
		}
		switch n := len(i.History.Spans); {
		case sizeOf(i.Plans) > fileLimit/4 && i.dropPlan(): // the other parts are worth more
		case n > 0:
			i.History.Spans, i.History.LeftOut = i.History.Spans[(n+1)/2:], i.History.LeftOut+(n+1)/2
		case len(i.Sessions) > 1:
			n := (len(i.Sessions) + 1) / 2
			i.SessionsLeftOut += len(i.Sessions) - n
			i.Sessions = i.Sessions[:n]
		case i.dropPlan():
		case i.Profile != nil && len(i.Profile.Stacks) > 0:
			n := len(i.Profile.Stacks) / 2 //nolint:mnd // half
			i.Profile.Stacks, i.Profile.LeftOut = i.Profile.Stacks[:n], i.Profile.LeftOut+len(i.Profile.Stacks)-n
		case i.dropStack():
		default:
			return nil, nil, fmt.Errorf("%w: %d bytes are too large", ErrUnreadable, len(text))
		}
	}
}

// tooLarge is the reason why a plan or a stack is left out of a file.
const tooLarge = "left out, because the file would be too large"

// sizeOf returns the number of bytes of plans in the JSON form.
func sizeOf(plans []ProcessPlan) int {
	text, _ := json.MarshalIndent(plans, "", " ") // encode has returned the error
	return len(render.VisibleJSON(text))
}

// dropPlan removes the plans of the last process that has some. It returns false if there is none.
func (i *Incident) dropPlan() bool {
	for j := len(i.Plans) - 1; j >= 0; j-- {
		if p := &i.Plans[j]; len(p.Statements) > 0 {
			p.Statements, p.LeftOut, p.Error = []*PlanNode{}, 0, tooLarge
			return true
		}
	}
	return false
}

// dropStack removes the last stack. It returns false if there is none.
func (i *Incident) dropStack() bool {
	for j := len(i.Stacks) - 1; j >= 0; j-- {
		if p := &i.Stacks[j]; p.Stack != nil {
			p.Stack, p.Error = nil, tooLarge
			return true
		}
	}
	return false
}

// writeFile writes a file under a temporary name and then renames it, so that a file with the final name is always complete.
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
	Size int64 // bytes of all files of the incident
}

// List returns the incidents of a directory, the oldest first. It returns nil without an error if the directory does not exist.
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
			continue // not a file of an incident
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
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return strings.Compare(a.ID, b.ID) < 0
	})
	return list, nil
}

// prune removes incidents until the incident id of this size is within the bounds: each time the oldest one of the rule that has most, so
// that many incidents of one rule do not remove those of others. If the incident id is there already, its files do not count. prune
// also removes old temporary files, which a killed worker has left.
func (d *Dir) prune(id string, size int64) error {
	names, _ := os.ReadDir(d.Path) // List returns the error
	for _, n := range names {
		st, err := n.Info()
		if err == nil && strings.HasSuffix(n.Name(), ".tmp") && time.Since(st.ModTime()) > time.Hour { // another process may be writing a younger file
			os.Remove(filepath.Join(d.Path, n.Name()))
		}
	}
	list, err := d.List()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(e Entry) bool { return e.ID == id })
	var total int64
	counts := map[string]int{} // by rule
	for _, e := range list {
		total += e.Size
		counts[ruleOf(e.ID)]++
	}
	for len(list) > 0 && (d.Keep > 0 && len(list) >= d.Keep || d.Size > 0 && total+size > d.Size) {
		most := 0
		for _, n := range counts {
			most = max(most, n)
		}
		i := slices.IndexFunc(list, func(e Entry) bool { return counts[ruleOf(e.ID)] == most })
		for _, kind := range []string{".json", ".html"} {
			if err := os.Remove(filepath.Join(d.Path, list[i].ID+kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("incidents: %w", err)
			}
		}
		total -= list[i].Size
		counts[ruleOf(list[i].ID)]--
		list = slices.Delete(list, i, i+1)
	}
	return nil
}

// ruleOf returns the rule in the name of an incident (see newID).
func ruleOf(id string) string {
	_, rule, _ := strings.Cut(id, "-")
	rule, _, _ = strings.Cut(rule, "-")
	return rule
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
	if !(limits.JSON{Depth: maxDepth, Elements: maxElements, Members: maxMembers}).Allows(text) {
		return nil, fmt.Errorf("%w: %s has more parts than an incident can have: it is forged or damaged", ErrUnreadable, path)
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

// deeper reports whether a forest has more levels than allowed, or a nil node. Such a forest comes from a damaged file.
func deeper(list []*Node, levels int) bool {
	return levels == 0 && len(list) > 0 || slices.ContainsFunc(list, func(n *Node) bool { return n == nil || deeper(n.Blocked, levels-1) })
}
