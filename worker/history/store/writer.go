package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/report/units"
)

// Defaults of the recorder's options.
const (
	DefaultKeep    = 7 * 24 * time.Hour
	DefaultSize    = 1 << 30
	DefaultMinFree = 1 << 30
)

// Options of a Writer. Zero values take the defaults.
type Options struct {
	Dir     string // the state directory, which belongs to the worker's user alone
	Meta    Meta
	Keep    time.Duration // age from which a closed hour is removed
	Size    int64         // bytes of all clusters in Dir together; the oldest hours are removed first
	MinFree int64         // bytes that must stay free in the file system
	// Shared is set if Size is the limit of several folders together: Dir and the other folders in Dir's parent directory whose
	// names begin with UserFolder. Each folder may use an equal part of Size.
	Shared bool
	// CloseJournal makes Open convert the journal that a former Writer has left, also if its hour is the current one. It must be set
	// if a Writer's method Append has returned ErrSync: the disk may lack parts of that journal, and a reader could not read behind
	// them.
	CloseJournal bool
	// KeepHours makes Open remove no hour on a full disk. It should be set if an Open has removed one less than a minute ago, because
	// the room may be gone for another reason.
	KeepHours bool
	// Notes keeps notes until a sweep is written. The caller should give the same Notes to each Open, so that notes of an Open that
	// failed and of a Writer that was closed are kept. nil: they are lost.
	Notes *Notes
}

// Notes are for the next sweep that can be written. The zero value is ready.
type Notes struct {
	text    string
	removed int // hours that were removed because the disk was full
}

// add adds a text, once.
func (n *Notes) add(text string) {
	if !strings.Contains(n.text, text) && len(n.text) < maxNote {
		n.text = strings.TrimPrefix(n.text+"; "+text, "; ")
	}
}

// after returns the notes after a sweep's own note.
func (n *Notes) after(own string) string {
	list := []string{own, "", n.text}
	if n.removed > 0 {
		list[1] = units.Plural(n.removed, "%d old {hour was|hours were} removed early, because the disk or a quota was full")
	}
	return strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == "" }), "; ")
}

// UserFolder is the begin of a folder's name; the user id follows. The workers of that user record there, if one service has the
// workers of several users.
const UserFolder = "uid-"

var (
	// ErrLocked means that another worker records the same cluster.
	ErrLocked = errors.New("another worker records this cluster")
	// ErrNoSpace means that less than Options.MinFree would stay free, and no closed hour is left to remove.
	ErrNoSpace = errors.New("not enough free space for the history")
	// ErrDirectory means that the state directory cannot be trusted or used.
	ErrDirectory = errors.New("the state directory cannot be used")
	// ErrBroken means that the file system has failed. The caller should close the Writer, so that the file system can be unmounted,
	// and call Open later.
	ErrBroken = errors.New("the file system of the history has failed")
	// ErrSync is an ErrBroken of fsync: the disk may lack sweeps that were written before.
	ErrSync = fmt.Errorf("%w to write to the disk", ErrBroken)
	// ErrRemoved means that the files of a Writer were removed or replaced while it used them. The next Open makes the files
	// again.
	ErrRemoved = errors.New("the files of the history were removed")
)

var systemID = regexp.MustCompile(`^[0-9]{1,20}$`)

// A Writer records one cluster. It must be used by one goroutine at a time.
type Writer struct {
	o       Options
	dir     string // of the cluster
	lock    *os.File
	journal *journal
	lost    int // number of sweeps that could not be written since the last success
	room    time.Time
	// again is the time of the next attempt to close an hour that could not be closed, and why is the error of the last attempt.
	again time.Time
	why   error
	freed time.Time // when an hour was removed because the disk was full
	// begun is the time of Open, or the time at which byAge accepted a new time. stepped is the time at which byAge noticed that the
	// clock was set forward; zero: it was not.
	begun, stepped time.Time
	opened         time.Time // time of Open
}

// maxNote bounds the note of a sweep, in bytes. A page of a Parquet file has its least and greatest text in the header, and readers
// refuse a long header.
const maxNote = 4 << 10

// closePause is the time between attempts to close an hour: each costs about as much as a minute of recording.
const closePause = 30 * time.Second

// Open locks the cluster's folder below the state directory. It makes both directories if they are missing. If a former worker has
// left a journal, Open continues the journal of the current hour, and converts the journal of an earlier hour into a closed hour.
// The errors are ErrDirectory, ErrLocked, and those of converting the journal. If the disk or a quota is full, Open removes the oldest
// closed hour before it returns an error, except with Options.KeepHours, and leaves the conversion of the journal to Append.
func Open(o Options) (*Writer, error) {
	if o.Keep <= 0 {
		o.Keep = DefaultKeep
	}
	if o.Size <= 0 {
		o.Size = DefaultSize
	}
	if o.MinFree <= 0 {
		o.MinFree = DefaultMinFree
	}
	if o.Notes == nil {
		o.Notes = new(Notes)
	}
	if !systemID.MatchString(o.Meta.SystemID) {
		return nil, fmt.Errorf("%w: the system identifier %q is not a number", ErrDirectory, o.Meta.SystemID)
	}
	now := time.Now()
	w := &Writer{o: o, dir: clusterDir(o.Dir, o.Meta.SystemID), begun: now, opened: now}
	if err := w.prepare(); err != nil {
		if full(err) && !o.KeepHours && removeOldest(o.Dir) {
			o.Notes.removed++
		}
		return nil, err
	}
	switch err := w.recover(now); {
	case full(err): // Append tries it again, and removes old hours for it
		w.again, w.why = now.Add(closePause), err
	case err != nil:
		w.lock.Close()
		return nil, explain(o.Dir, err)
	}
	return w, nil
}

// prepare makes the folders and takes the lock.
func (w *Writer) prepare() error {
	for _, dir := range []string{w.o.Dir, w.dir} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w: %w", ErrDirectory, explain(filepath.Dir(dir), err))
		}
		if err := trusted(dir); err != nil {
			return err
		}
	}
	return w.takeLock()
}

func clusterDir(dir, id string) string     { return filepath.Join(dir, "cluster="+id) }
func journalPath(clusterDir string) string { return filepath.Join(clusterDir, "journal") }

// trusted verifies that only the worker's user can write to a folder: another user could otherwise replace files that the worker
// writes. It also returns an error for network file systems.
func trusted(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDirectory, dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%w: %s is a symbolic link: name the directory to which it leads", ErrDirectory, dir)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%w: %s is not a directory", ErrDirectory, dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to user %d, and the worker is user %d", ErrDirectory, dir, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%w: %s may be read by others (mode %04o): chmod 700 %s", ErrDirectory, dir, st.Mode&0o7777, dir)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDirectory, dir, err)
	}
	if s.Type == unix.NFS_SUPER_MAGIC || s.Type == unix.SMB_SUPER_MAGIC || s.Type == unix.CIFS_SUPER_MAGIC {
		return fmt.Errorf("%w: %s is on a network file system, which can stop the recorder: use a local disk", ErrDirectory, dir)
	}
	return nil
}

func (w *Writer) takeLock() error {
	f, err := os.OpenFile(filepath.Join(w.dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, explain(w.dir, err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 20)
		n, _ := f.ReadAt(holder, 0)
		f.Close()
		if pid := strings.TrimSpace(string(holder[:n])); errors.Is(err, unix.EWOULDBLOCK) && pid != "" {
			return fmt.Errorf("%w: process %s holds %s", ErrLocked, pid, f.Name())
		}
		return fmt.Errorf("%w: %s: %w", ErrLocked, f.Name(), err)
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		_ = err // only error messages use the number
	}
	w.lock = f
	return nil
}

// recover continues or closes the journal that a former worker has left, or whose hour this worker could not close. Without a
// journal, it does nothing.
func (w *Writer) recover(now time.Time) error {
	clean(w.dir)
	path := journalPath(w.dir)
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	f, err := openFrames(file, st.Size())
	if errors.Is(err, ErrJournal) { // not one of ours, or of a later version: keep it, out of the way
		return w.setAside(now, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	defer f.close()
	if f.meta != w.o.Meta || w.o.CloseJournal {
		return w.closeHour(now)
	}
	var first time.Time
	stacks := map[int64]bool{}
	for {
		at, err := f.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil { // the disk has failed: what follows may be readable later
			return fmt.Errorf("%w: %w", ErrDirectory, err)
		}
		if f.sums {
			continue
		}
		if first.IsZero() {
			first = at
		}
		if bytesHaveStacks(f) {
			s, err := f.sweep(at)
			if err != nil { // readers report this record
				continue
			}
			for _, k := range s.Stacks {
				stacks[k.ID] = true
			}
		}
	}
	end, damage := f.at, f.damage
	if f.tail != nil { // not a torn record: readers skip these bytes
		end, damage = st.Size(), append(damage, f.tail)
	}
	if first.IsZero() && len(damage) > 0 {
		return w.setAside(now, damage[0])
	}
	if first.IsZero() { // no sweep was written
		return os.Remove(path)
	}
	if !first.Truncate(time.Hour).Equal(now.UTC().Truncate(time.Hour)) {
		return w.closeHour(now)
	}
	j, err := continueJournal(path, end, first, stacks)
	if err != nil {
		return err
	}
	if len(damage) > 0 {
		text := units.Plural(len(damage), "%d {part|parts} of the hour's journal {is|are} damaged, and the others are kept: ")
		w.o.Notes.add(text + damage[0].Error())
	}
	w.journal = j
	return nil
}

// setAside renames a journal that cannot be read. The note of the next sweep reports this.
func (w *Writer) setAside(now time.Time, why error) error {
	path := journalPath(w.dir)
	to := filepath.Join(w.dir, asideName+strconv.FormatInt(now.UnixNano(), 10))
	if err := os.Rename(path, to); err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	w.o.Notes.add(fmt.Sprintf("the journal before could not be read, and is kept as %s: %v", filepath.Base(to), why))
	return nil
}

// clean removes the temporary files that a killed worker has left.
func clean(dir string) {
	for _, f := range glob(dir, "date=*/hour=*/*.tmp") {
		os.Remove(f)
	}
}

// Append writes a sweep. After an error the sweep is lost. The next sweep that can be written has the number of lost sweeps
// (Sweep.Lost). Append may close an hour, which takes some 0.2 s of processor time. If the disk or a quota is full, it removes
// the oldest closed hour, at most once a minute.
func (w *Writer) Append(s *Sweep) error {
	own, note := s.Lost, s.Note
	err := w.ready(s.Time)
	if err == nil {
		s.Lost += w.lost
		s.Note = w.o.Notes.after(note) // also the notes of ready
		if len(s.Note) > maxNote {
			s.Note = strings.ToValidUTF8(s.Note[:maxNote], "") + more
		}
		err = w.journal.append(s)
	}
	if err != nil {
		s.Lost, s.Note = own, note
		w.lost += own + 1
		if full(err) && s.Time.Sub(w.freed).Abs() >= time.Minute {
			w.freed = s.Time
			if removeOldest(w.o.Dir) {
				w.why = nil // an hour that could not be closed may have room now
				w.o.Notes.removed++
			}
		}
		if broken(err) && !errors.Is(err, ErrBroken) {
			err = fmt.Errorf("%w: %w", ErrBroken, err)
		}
		return explain(w.o.Dir, err)
	}
	w.lost, *w.o.Notes = 0, Notes{}
	return nil
}

// ready makes the journal ready for a sweep of this time: it closes an earlier hour, and removes old hours.
func (w *Writer) ready(now time.Time) error {
	if err := w.present(); err != nil {
		return err
	}
	if w.journal != nil && !w.journal.hour.Equal(now.UTC().Truncate(time.Hour)) {
		if err := w.endHour(now); err != nil {
			return err
		}
	}
	if err := w.checkRoom(now); err != nil {
		return err
	}
	if w.journal == nil {
		return w.begin(now)
	}
	return nil
}

// present returns an error if the file at the journal's path is missing or another file, because readers would not find the
// journal's sweeps.
func (w *Writer) present() error {
	if w.journal == nil {
		return nil
	}
	path := journalPath(w.dir)
	var own, now unix.Stat_t
	if err := unix.Fstat(int(w.journal.file.Fd()), &own); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	switch err := unix.Lstat(path, &now); {
	case errors.Is(err, unix.ENOENT), err == nil && (own.Dev != now.Dev || own.Ino != now.Ino):
		return fmt.Errorf("%w: %s", ErrRemoved, path)
	case err != nil:
		return fmt.Errorf("journal: %s: %w", path, err)
	}
	return nil
}

// begin makes a journal. If there is a journal already, its hour could not be closed, so begin first continues or closes it. After
// an error, it returns the same error until closePause has passed.
func (w *Writer) begin(now time.Time) error {
	if w.why != nil && now.Before(w.again) && w.again.Sub(now) <= closePause {
		return w.why
	}
	path := journalPath(w.dir)
	_, err := os.Lstat(path)
	if err == nil {
		if err = w.recover(now); err != nil {
			w.again, w.why = now.Add(closePause), err
			return err
		}
	}
	w.why = nil
	if w.journal != nil {
		return nil
	}
	j, err := createJournal(path, w.o.Meta, now)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrRemoved, err)
	}
	if err != nil {
		return err
	}
	w.journal = j
	return nil
}

// checkRoom calls prune once a minute, which removes old hours. It returns ErrNoSpace if the file system is nearly full
// nevertheless. After an error, the next sweep calls prune again.
func (w *Writer) checkRoom(now time.Time) error {
	if since := now.Sub(w.room); since >= 0 && since < time.Minute {
		return nil
	}
	if err := w.prune(now); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %w", ErrRemoved, err)
		}
		return err // the next sweep calls prune again
	}
	w.room = now
	return nil
}

// endHour closes the hour of the journal. If that fails, begin tries it again.
func (w *Writer) endHour(now time.Time) error {
	j := w.journal
	w.journal = nil
	err := j.close()
	if err == nil {
		err = w.closeHour(now)
	}
	if err != nil {
		w.again, w.why = now.Add(closePause), err
	}
	return err
}

// Close ends recording. The hour in progress stays in the journal, and the next Writer continues it.
func (w *Writer) Close() error {
	var err error
	if w.journal != nil {
		err = w.journal.close()
	}
	return errors.Join(err, w.lock.Close())
}

// Lost returns how many sweeps could not be written since the last sweep that was written.
func (w *Writer) Lost() int { return w.lost }
