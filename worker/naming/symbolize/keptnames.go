package symbolize

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"sync"

	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/host/buildcache"
)

// largestKept bounds the size of files whose derived names are kept. A stripped server has 8 MB.
const largestKept = 64 << 20

// kindOfNames is the buildcache.Key.Kind under which derived names are kept.
const kindOfNames = "names"

// keptNames returns the derived names of an earlier run, or derives and keeps them. It returns false if nothing can be
// kept for this image: there is no folder, or the image has no file or no build-id, or is too large.
//
// The key has a hash of the whole file, since another file can have the same build-id. Names that are kept are derived
// from the same bytes as the hash: from a copy in memory, because another user may write to the file meanwhile.
func (m *Module) keptNames(folder buildcache.Folder) (names *selfnames.Names, ok bool) {
	file, build := m.Image.File(), m.Image.BuildID()
	program := programID()
	if folder == "" || file == nil || file.Size() > largestKept || !buildcache.IsBuildID(build) || program == "" {
		return nil, false
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return nil, false
	}
	key := func(sum []byte) buildcache.Key {
		return buildcache.Key{Kind: kindOfNames, Build: build, Detail: program + " " + hex.EncodeToString(sum)}
	}
	if names, err := selfnames.Decode(folder.Load(key(hash.Sum(nil)))); err == nil {
		return names, true
	}
	var notKept error
	if m.Sources.Scanning != nil {
		ended := m.Sources.Scanning(m.Name, string(folder))
		defer func() { ended(notKept) }()
	}
	content := make([]byte, file.Size())
	if _, err := file.ReadAt(content, 0); err != nil {
		return nil, false
	}
	sum := sha256.Sum256(content)
	img, err := elfimage.Open(bytes.NewReader(content), m.Name)
	if err != nil {
		return nil, false
	}
	symbols, _ := symbol.NewTable(img) // if a table is damaged, NewTable returns the readable symbols and an error
	names, err = selfnames.Derive(img, tableOf(img, m.Arch, nil), symbols, selfnames.Builtin())
	if err != nil {
		return nil, true
	}
	var encoded []byte
	if encoded, notKept = names.AppendBinary(nil); notKept == nil {
		notKept = folder.Save(key(sum[:]), encoded)
	}
	return names, true
}

// keptFolder returns the folder of kept results, or "" if results are not kept.
func (s *Sources) keptFolder() buildcache.Folder {
	if s.Kept == nil {
		return ""
	}
	return s.Kept()
}

// programID returns the build-id of this program. It is part of the keys, so that another build does not use the
// results of this one. It is "" if the program has no build-id.
var programID = sync.OnceValue(func() string {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	img, err := elfimage.Open(f, "/proc/self/exe")
	if err != nil {
		return ""
	}
	return img.BuildID()
})
