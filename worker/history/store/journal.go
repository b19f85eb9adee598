package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// A journal begins with its magic and a frame that has the Meta. Then each sweep is a frame:
//
//	4 bytes  length of what follows the checksum, little endian
//	4 bytes  CRC-32C of what follows
//	8 bytes  time, microseconds since 1970
//	the rest JSON, compressed by zstd
const (
	magic      = "pgsbhis1"
	frameHead  = 8
	frameTime  = 8
	frameLimit = 64 << 20 // of a frame, compressed
	plainLimit = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrJournal means that a file is not a journal of this format.
var ErrJournal = errors.New("not a journal of pg_stat_backtrace's history")

func encodeFrame(z *zstd.Encoder, at time.Time, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	frame := make([]byte, frameHead+frameTime, frameHead+frameTime+len(text)/4)
	binary.LittleEndian.PutUint64(frame[frameHead:], uint64(at.UnixMicro()))
	frame = z.EncodeAll(text, frame)
	if len(frame) > frameLimit {
		return nil, fmt.Errorf("a sweep of %d bytes is too large", len(frame))
	}
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-frameHead))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(frame[frameHead:], castagnoli))
	return frame, nil
}

// A frames reads the frames of a journal.
type frames struct {
	r    io.ReaderAt
	size int64
	at   int64 // offset after the last good frame
	z    *zstd.Decoder
	meta Meta
	buf  []byte
	text []byte
}

func openFrames(r io.ReaderAt, size int64) (*frames, error) {
	head := make([]byte, len(magic))
	if _, err := r.ReadAt(head, 0); err != nil || string(head) != magic {
		return nil, ErrJournal
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(plainLimit))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	f := &frames{r: r, size: size, at: int64(len(magic)), z: z}
	if _, err := f.next(); err != nil {
		z.Close()
		return nil, ErrJournal
	}
	if err := f.decode(&f.meta); err != nil {
		z.Close()
		return nil, ErrJournal
	}
	return f, nil
}

func (f *frames) close() { f.z.Close() }

// next reads the head and the bytes of the next frame, without decoding them. io.EOF: there are no more whole frames.
func (f *frames) next() (time.Time, error) {
	var head [frameHead]byte
	if f.at+frameHead+frameTime > f.size {
		return time.Time{}, io.EOF
	}
	if _, err := f.r.ReadAt(head[:], f.at); err != nil {
		return time.Time{}, fmt.Errorf("journal: %w", err)
	}
	length := int64(binary.LittleEndian.Uint32(head[:]))
	if length < frameTime || length > frameLimit || f.at+frameHead+length > f.size {
		return time.Time{}, io.EOF // torn, or being written
	}
	if int64(cap(f.buf)) < length {
		f.buf = make([]byte, length)
	}
	f.buf = f.buf[:length]
	if _, err := f.r.ReadAt(f.buf, f.at+frameHead); err != nil {
		return time.Time{}, fmt.Errorf("journal: %w", err)
	}
	if crc32.Checksum(f.buf, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return time.Time{}, io.EOF
	}
	f.at += frameHead + length
	return time.UnixMicro(int64(binary.LittleEndian.Uint64(f.buf))).UTC(), nil
}

func (f *frames) decode(v any) error {
	text, err := f.z.DecodeAll(f.buf[frameTime:], f.text[:0])
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	f.text = text
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// sweep decodes the frame that next has read.
func (f *frames) sweep(at time.Time) (*Sweep, error) {
	s := new(Sweep)
	if err := f.decode(s); err != nil {
		return nil, err
	}
	s.Time = at
	for i := range s.Rows {
		s.Rows[i].Time = at.UnixMicro()
	}
	return s, nil
}

// A journal is the file of the hour in progress, open for writing.
type journal struct {
	file   *os.File
	z      *zstd.Encoder
	size   int64
	hour   time.Time      // begin of the hour, in UTC
	stacks map[int64]bool // that the file has
	synced time.Time
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

// continueJournal opens the journal of a former worker, and cuts off a torn frame at its end.
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

// write appends. After a failure the file is as before: a full disk loses this frame only.
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
		r.Time = 0 // the frame has it
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
	if err := j.write(frame); err != nil {
		return err
	}
	for _, k := range slim.Stacks {
		j.stacks[k.ID] = true
	}
	if since := s.Time.Sub(j.synced); since >= syncEach || since < 0 {
		j.synced = s.Time
		if err := j.file.Sync(); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
	}
	return nil
}

// syncEach bounds what a loss of power loses. A killed process loses nothing that was written.
const syncEach = 10 * time.Second

func (j *journal) close() error {
	j.z.Close()
	if err := errors.Join(j.file.Sync(), j.file.Close()); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// readJournal calls each with the sweeps of a journal between since and until, in the order in which they were written.
func readJournal(file *os.File, since, until time.Time, each func(*Sweep) error) (Meta, error) {
	st, err := file.Stat()
	if err != nil {
		return Meta{}, fmt.Errorf("journal: %w", err)
	}
	f, err := openFrames(file, st.Size())
	if err != nil {
		return Meta{}, err
	}
	defer f.close()
	for {
		at, err := f.next()
		if errors.Is(err, io.EOF) {
			return f.meta, nil
		}
		if err != nil {
			return f.meta, err
		}
		outside := at.Before(since) || !at.Before(until)
		if outside && !bytesHaveStacks(f) {
			continue
		}
		s, err := f.sweep(at)
		if err != nil {
			return f.meta, err
		}
		if outside {
			s.Rows = nil // its stacks may be named later
		}
		if err := each(s); err != nil {
			return f.meta, err
		}
	}
}

// bytesHaveStacks decompresses the frame and looks for stacks, which costs far less than to decode it.
func bytesHaveStacks(f *frames) bool {
	text, err := f.z.DecodeAll(f.buf[frameTime:], f.text[:0])
	if err != nil {
		return true // sweep reports it
	}
	f.text = text
	return bytes.Contains(text, []byte(`"stacks":[`))
}
