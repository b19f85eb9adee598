package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/report/units"
)

// A journal begins with the magic and a record that has the Meta. Then each Sweep is a record:
//
//	4 bytes  length of the bytes after the checksum, little endian
//	4 bytes  CRC-32C of the bytes that follow
//	8 bytes  time, microseconds since 1970
//	the rest JSON, compressed by zstd
//
// journalsums.go describes the records that have the Sums of a minute.
const (
	magic      = "pgsbhis1"
	frameHead  = 8
	frameTime  = 8
	frameLimit = 64 << 20 // of a record, compressed
	plainLimit = 64 << 20 // of a record, decompressed
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrJournal means that a file is not a journal of this format.
var ErrJournal = errors.New("not a journal of pg_stat_backtrace's history")

// errBegun is an ErrJournal: the file ends before its first sweep. A worker is making the file, or was killed while it did so.
var errBegun = fmt.Errorf("%w: it ends before the first sweep", ErrJournal)

func encodeFrame(z *zstd.Encoder, at time.Time, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if !withinMemory(text) {
		return nil, errTooLarge
	}
	return newFrame(z, uint64(at.UnixMicro()), text)
}

// newFrame makes a record of the journal (in the code: a frame) from the data in plain. at is the record's time as it stands in the
// file: in microseconds, with sumsMark set if the record has Sums.
func newFrame(z *zstd.Encoder, at uint64, plain []byte) ([]byte, error) {
	if len(plain) > plainLimit {
		return nil, fmt.Errorf("a sweep of %d bytes is too large", len(plain))
	}
	frame := make([]byte, frameHead+frameTime, frameHead+frameTime+len(plain)/4)
	binary.LittleEndian.PutUint64(frame[frameHead:], at)
	frame = z.EncodeAll(plain, frame)
	if len(frame) > frameLimit {
		return nil, fmt.Errorf("a sweep of %d bytes is too large", len(frame))
	}
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-frameHead))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(frame[frameHead:], castagnoli))
	return frame, nil
}

// A frames reads the records of a journal, one after the other. It skips damaged bytes: see next.
type frames struct {
	r    io.ReaderAt
	name string // of the file
	size int64
	at   int64 // offset after the last good record
	z    *zstd.Decoder
	meta Meta
	sums bool   // the record that next has read has the Sums of a minute, not a sweep
	sum  uint32 // checksum of the record that next has read
	buf  []byte
	text []byte

	damage  []error // skipped bytes and refused records, with their places
	tail    error   // the end of the file is damaged; nil: it is complete, or its last record is torn
	checked int64   // bytes of which a checksum was computed and was wrong
}

// openFrames reads the begin of a journal. If its Meta is damaged, and it has a good record, the field meta is zero.
func openFrames(r io.ReaderAt, size int64) (*frames, error) {
	f := &frames{r: r, name: "journal", size: size, at: int64(len(magic))}
	if file, ok := r.(*os.File); ok {
		f.name = file.Name()
	}
	head := make([]byte, len(magic))
	switch n, err := r.ReadAt(head, 0); {
	case errors.Is(err, io.EOF) && string(head[:n]) == magic[:n]:
		return nil, errBegun
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: journal: %w", ErrFile, err)
	case !likeMagic(head):
		return nil, ErrJournal
	case string(head) != magic:
		f.damaged(0, "its first bytes are wrong")
	}
	var err error
	if f.z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(plainLimit)); err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	if err := f.begin(); err != nil {
		f.z.Close()
		return nil, err
	}
	return f, nil
}

// likeMagic reports whether the bytes are the magic of this version, of which at most one byte is damaged. The last byte is the
// version.
func likeMagic(head []byte) bool {
	wrong := 0
	for i := range magic {
		if head[i] != magic[i] {
			wrong++
		}
	}
	return wrong == 0 || wrong == 1 && head[len(magic)-1] == magic[len(magic)-1]
}

// begin reads the Meta. If it is damaged, begin leaves f.at at the next good record.
func (f *frames) begin() error {
	_, err := f.next()
	switch {
	case errors.Is(err, io.EOF) && f.begun():
		return errBegun
	case errors.Is(err, io.EOF):
		return ErrJournal
	case err != nil:
		return err
	}
	first := f.offset()
	if first == int64(len(magic)) {
		if err := f.decode(&f.meta); err != nil {
			return ErrJournal
		}
		return nil
	}
	f.at = first // the record that next has read is not the Meta
	return nil
}

// begun reports whether the file ends within its first record, so that its writer may still be writing this record.
func (f *frames) begun() bool {
	const most = 64 << 10 // the Meta is smaller, so a greater length means damage
	var head [frameHead]byte
	if f.at+frameHead > f.size {
		return true
	}
	if _, err := f.r.ReadAt(head[:], f.at); err != nil {
		return false
	}
	length := int64(binary.LittleEndian.Uint32(head[:]))
	return length >= frameTime && length <= most && f.at+frameHead+length > f.size
}

func (f *frames) close() { f.z.Close() }

// next reads the head and the bytes of the next record, without decoding them, and returns the record's time. It skips damaged
// bytes up to the next good record, and records with an impossible time; the field damage then has their places. It returns io.EOF
// if there is no further good record, and ErrFile if the disk cannot be read.
func (f *frames) next() (time.Time, error) {
	for {
		from := f.at
		at, err := f.read()
		switch {
		case err == nil && possible(at.UnixMicro()):
			f.tail = nil
			return at, nil
		case err == nil:
			f.damaged(from, "a record with an impossible time is ignored")
		case !errors.Is(err, errFrame):
			return time.Time{}, err
		default:
			if err := f.resync(); err != nil {
				return time.Time{}, err
			}
		}
	}
}

// errFrame means that no complete record with a right checksum is at an offset.
var errFrame = errors.New("no good record")

// read reads the record at f.at. It returns errFrame if there is no good record.
func (f *frames) read() (time.Time, error) {
	var head [frameHead]byte
	if f.at+frameHead+frameTime > f.size {
		return time.Time{}, errFrame
	}
	if _, err := f.r.ReadAt(head[:], f.at); err != nil {
		return time.Time{}, fmt.Errorf("%w: journal: %w", ErrFile, err)
	}
	length := int64(binary.LittleEndian.Uint32(head[:]))
	if length < frameTime || length > frameLimit || f.at+frameHead+length > f.size {
		return time.Time{}, errFrame // the record is torn, or is being written
	}
	if int64(cap(f.buf)) < length {
		f.buf = make([]byte, length)
	}
	f.buf = f.buf[:length]
	if _, err := f.r.ReadAt(f.buf, f.at+frameHead); err != nil {
		return time.Time{}, fmt.Errorf("%w: journal: %w", ErrFile, err)
	}
	sum := binary.LittleEndian.Uint32(head[4:])
	if crc32.Checksum(f.buf, castagnoli) != sum {
		f.checked += length
		return time.Time{}, errFrame
	}
	f.at += frameHead + length
	at := binary.LittleEndian.Uint64(f.buf)
	f.sums, f.sum = at&sumsMark != 0, sum
	return time.UnixMicro(int64(at &^ sumsMark)).UTC(), nil
}

// plain decompresses the record that next has read.
func (f *frames) plain() ([]byte, error) {
	text, err := f.z.DecodeAll(f.buf[frameTime:], f.text[:0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	f.text = text
	return text, nil
}

// minute decodes the record of Sums that next has read. The results are those of decodeSums.
func (f *frames) minute(minute int64) (from int64, list []Sum, err error) {
	b, err := f.plain()
	if err != nil {
		return 0, nil, err
	}
	return decodeSums(b, minute)
}

func (f *frames) decode(v any) error {
	text, err := f.plain()
	if err != nil {
		return err
	}
	if !withinMemory(text) {
		return errTooLarge
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

// offset returns where the record that next has read begins.
func (f *frames) offset() int64 { return f.at - frameHead - int64(len(f.buf)) }

// sweep decodes the record that next has read. It returns errRefused if the record is forged or damaged.
func (f *frames) sweep(at time.Time) (*Sweep, error) {
	s := new(Sweep)
	if err := f.decode(s); err != nil {
		return nil, err
	}
	s.Time = at
	if !infoOf(s).possible() || s.Lost < 0 {
		return nil, fmt.Errorf("%w: it has an impossible duration or count", errRefused)
	}
	if len(s.Note) > maxNote+len(more) {
		s.Note = strings.ToValidUTF8(s.Note[:maxNote], "") + more
	}
	rows := s.Rows[:0]
	for i := range s.Rows {
		if s.Rows[i].Time = at.UnixMicro(); s.Rows[i].possible() {
			rows = append(rows, s.Rows[i])
		}
	}
	if n := len(s.Rows) - len(rows); n > 0 {
		f.damaged(f.offset(), units.Plural(n, "%d {row with an impossible time is|rows with impossible times are} ignored"))
		s.Rows = rows
	}
	return s, nil
}

// A journal is the file of the hour in progress, open for writing.
type journal struct {
	file   *os.File
	z      *zstd.Encoder
	size   int64
	hour   time.Time      // begin of the hour, in UTC
	stacks map[int64]bool // ids of the stacks that the file has
	synced time.Time
	tally  tally // Sums of the minute in progress
}

func createJournal(path string, meta Meta, at time.Time) (*journal, error) {
	z, err := newEncoder()
	if err != nil {
		return nil, err
	}
	frame, err := encodeFrame(z, at, meta)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &journal{file: file, z: z, hour: at.UTC().Truncate(time.Hour), stacks: map[int64]bool{}, synced: at}
	if err := j.write(append([]byte(magic), frame...)); err != nil {
		file.Close()
		os.Remove(path)
		return nil, err
	}
	return j, nil
}

// continueJournal opens the journal of a former worker. It cuts the file to the length size, which removes a torn record at its
// end. The caller keeps damaged bytes before size, since good records may follow them. first is the time of the journal's first
// sweep, and stacks are the ids of its stacks.
func continueJournal(path string, size int64, first time.Time, stacks map[int64]bool) (*journal, error) {
	z, err := newEncoder()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if err := file.Truncate(size); err != nil {
		file.Close()
		return nil, fmt.Errorf("journal: %w", err)
	}
	return &journal{file: file, z: z, size: size, hour: first.UTC().Truncate(time.Hour), stacks: stacks}, nil
}

func newEncoder() (*zstd.Encoder, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return z, nil
}

// write appends b, one record of the journal. After an error it truncates the file to its former length, so that on a full disk
// only this record is lost.
func (j *journal) write(b []byte) error {
	if _, err := j.file.WriteAt(b, j.size); err != nil {
		if terr := j.file.Truncate(j.size); terr != nil {
			return fmt.Errorf("journal: %w", errors.Join(err, terr))
		}
		return fmt.Errorf("journal: %w", err)
	}
	j.size += int64(len(b))
	return nil
}

func (j *journal) append(s *Sweep) error {
	slim := *s
	slim.Rows = make([]Row, len(s.Rows))
	for i, r := range s.Rows {
		r.Time = 0 // the head of the record has the time
		slim.Rows[i] = r
	}
	slim.Stacks = nil
	for _, k := range s.Stacks {
		if !j.stacks[k.ID] {
			slim.Stacks = append(slim.Stacks, k)
		}
	}
	frame, err := encodeFrame(j.z, s.Time, &slim)
	if err != nil {
		return err
	}
	j.endMinute(s.Time)
	offset := j.size
	if err := j.write(frame); err != nil {
		return err
	}
	if since := s.Time.Sub(j.synced); since >= syncEach || since < 0 {
		j.synced = s.Time
		if err := j.file.Sync(); err != nil {
			j.size = offset // the caller counts this sweep as lost
			return fmt.Errorf("%w: %w", ErrSync, errors.Join(err, j.file.Truncate(offset)))
		}
	}
	j.tally.count(&slim, offset)
	for _, k := range slim.Stacks {
		j.stacks[k.ID] = true
	}
	return nil
}

// endMinute writes the Sums of the minute in progress if there are any and the time at is outside of this minute. It ignores
// errors, since a reader can compute the Sums from the sweeps.
func (j *journal) endMinute(at time.Time) {
	if j.tally.minutes == nil || spanOf(at.UnixMicro(), minuteSeconds) == j.tally.minute {
		return
	}
	if frame, err := j.tally.frame(j.z); err == nil {
		_ = j.write(frame)
	}
	j.tally = tally{}
}

// syncEach is the time between calls of fsync. A loss of power loses at most the sweeps of this time. A kill of the worker loses no
// sweep that was written.
const syncEach = 10 * time.Second

func (j *journal) close() error {
	j.z.Close()
	if err := errors.Join(j.file.Sync(), j.file.Close()); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// readJournal passes the sweeps of a journal between since and until to the callback each, one by one, as sweepReader.pass does.
// The result damage has the places of damaged and refused records.
func readJournal(file *os.File, since, until time.Time, each func(*Sweep) error) (meta Meta, damage []error, err error) {
	j := sweepReader{since: since, until: until}
	if err = j.open(file); err == nil {
		defer j.close()
		err = j.pass(math.MaxInt64, each)
	}
	if j.f == nil {
		return Meta{}, nil, err
	}
	return j.f.meta, j.damage(), err
}

// A sweepReader reads the sweeps of a journal, sorted by time, because the clock may have been set back. The zero value reads none.
type sweepReader struct {
	since, until time.Time
	f            *frames // nil: there is no journal
	list         []sweepFrame
	tail         error // of the frames
}

// openSweeps returns a sweepReader of a journal, or one without sweeps if the journal is nil or cannot be read.
func (r *Reader) openSweeps(journal *os.File, since, until time.Time) (*sweepReader, error) {
	j := &sweepReader{since: since, until: until}
	if journal == nil {
		return j, nil
	}
	return j, r.damaged(j.open(journal))
}

func (j *sweepReader) open(file *os.File) error {
	st, err := file.Stat()
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if j.f, err = openFrames(file, st.Size()); err != nil {
		return err
	}
	j.list, err = j.f.list()
	j.tail = j.f.tail
	return err
}

func (j *sweepReader) close() {
	if j.f != nil {
		j.f.close()
	}
}

// damage returns the places of damaged and refused records.
func (j *sweepReader) damage() []error {
	switch {
	case j.f == nil:
		return nil
	case j.tail != nil:
		return append(j.f.damage, j.tail)
	}
	return j.f.damage
}

// pass passes the next sweeps, whose time is less than before (in microseconds since 1970), to the callback each, one by one. It
// also passes sweeps outside of the span that have stacks, but without their rows. After an error it passes no more.
func (j *sweepReader) pass(before int64, each func(*Sweep) error) error {
	for len(j.list) > 0 && j.list[0].at < before {
		frame := j.list[0]
		j.list = j.list[1:]
		if err := j.sweep(frame, each); err != nil {
			j.list = nil
			return err
		}
	}
	return nil
}

func (j *sweepReader) sweep(frame sweepFrame, each func(*Sweep) error) error {
	j.f.at = frame.offset
	at, err := j.f.next()
	if err != nil {
		return err
	}
	outside := at.Before(j.since) || !at.Before(j.until)
	if outside && !bytesHaveStacks(j.f) {
		return nil
	}
	s, err := j.f.sweep(at)
	if errors.Is(err, errRefused) {
		j.f.damaged(frame.offset, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	if outside {
		s.Rows = nil // sweeps in the span may refer to its stacks
	}
	return each(s)
}

// firstSweep returns the time of the first sweep of a journal, and its Meta; the zero time: it has no sweep.
func firstSweep(file io.ReaderAt, size int64) (time.Time, Meta, error) {
	f, err := openFrames(file, size)
	if err != nil {
		return time.Time{}, Meta{}, err
	}
	defer f.close()
	for {
		at, err := f.next()
		switch {
		case errors.Is(err, io.EOF):
			return time.Time{}, f.meta, nil
		case err != nil || !f.sums:
			return at, f.meta, err
		}
	}
}

// list returns the places of the records that have sweeps, ordered by time. A record that the file has twice is listed once.
func (f *frames) list() (list []sweepFrame, err error) {
	for len(list) < maxFrames {
		at, err := f.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if !f.sums {
			list = append(list, sweepFrame{offset: f.offset(), at: at.UnixMicro(), sum: f.sum})
		}
	}
	if len(list) == maxFrames {
		f.damaged(f.at, "more records than an hour can have: the rest is ignored")
	}
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.sum, b.sum)) < 0
	})
	return slices.CompactFunc(list, func(a, b sweepFrame) bool {
		twice := a.at == b.at && a.sum == b.sum
		if twice {
			f.damaged(b.offset, "a record stands in the file again, and counts once")
		}
		return twice
	}), nil
}

// bytesHaveStacks reports whether the record that next has read has stacks. It searches the JSON text, which costs far less than
// decoding it.
func bytesHaveStacks(f *frames) bool {
	text, err := f.plain()
	if err != nil {
		return true // the caller's call of sweep returns the error
	}
	return bytes.Contains(text, []byte(`"stacks":[`))
}
