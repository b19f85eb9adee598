package locks

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/layout"
)

// Bounds of the searches of a SharedNames.
const (
	maxShared    = 1 << 24         // 128 GB of shared buffers: searches are rare
	maxQuick     = 512             // pages that are read again without a search
	searchShare  = 100             // a search for missing names may take 1/searchShare of the time
	regularShare = 500             // a regular search may take 1/regularShare of the time
	shortest     = 2 * time.Second // between regular searches
	longest      = time.Minute     // between searches, however long the last one took
)

// SharedNames reads the names of all roles and databases of one run of a server, from the pages of pg_authid and pg_database. It
// needs no connection. It must not be used by several goroutines at a time.
type SharedNames struct {
	reader           *NameReader
	log              commitLog
	findLog          func() uint64
	roles, databases sharedCatalog
	searched         time.Time     // the end of the last search
	took             time.Duration // by the last search
}

// sharedCatalog is a catalog that all databases share.
type sharedCatalog struct {
	oid    uint32
	places []bufferPlace
	filed  map[uint32][]byte // the pages that no buffer had at the last search
	names  map[uint32][]string
}

// OpenSharedNames returns a reader for a running server. region returns the address of a named part of its shared memory, like
// Reader.Region. The error wraps waits.ErrUnsupported if the names of this server cannot be found.
func OpenSharedNames(
	program *cluster.Program, major, postmaster int, dataDir string, region func(name string) uint64,
) (*SharedNames, error) {
	r, err := OpenNames(program, major, postmaster, dataDir)
	if err != nil {
		return nil, err
	}
	r.most = maxShared
	s := &SharedNames{
		reader: r, log: commitLog{r: r, l: layout.CommitLogOf(major)},
		roles:     sharedCatalog{oid: layout.Pages.AuthidOID},
		databases: sharedCatalog{oid: layout.Pages.DatabaseOID},
	}
	s.findLog = func() uint64 { return region(s.log.l.Region) }
	return s, nil
}

// Read reads the names. A role or a database has several names if it is not certain which of them is its name now. After an error
// Roles and Databases return nil.
func (s *SharedNames) Read() error {
	if s.roles.names != nil && s.quick(&s.roles) && s.quick(&s.databases) {
		regular := len(s.roles.filed)+len(s.databases.filed) > 0 // a buffer may have these pages by now
		if !regular || time.Since(s.searched) < min(max(shortest, regularShare*s.took), longest) {
			return nil
		}
	}
	return s.search()
}

// Search reads the names again, also from pages that came into the buffers after the last search. It does nothing if the last
// search was too recent for its cost. The caller calls it if a name from Read cannot be right.
func (s *SharedNames) Search() error {
	if time.Since(s.searched) < min(searchShare*s.took, longest) {
		return nil
	}
	return s.search()
}

// Roles returns the names of all roles by oid. The caller must not change the result.
func (s *SharedNames) Roles() map[uint32][]string { return s.roles.names }

// Databases returns the names of all databases by oid. The caller must not change the result.
func (s *SharedNames) Databases() map[uint32][]string { return s.databases.names }

func (s *SharedNames) search() error {
	began := time.Now()
	if s.log.region == 0 {
		s.log.region = s.findLog()
	}
	err := s.searchCatalog(&s.roles)
	if err == nil {
		err = s.searchCatalog(&s.databases)
	}
	if err != nil {
		s.roles.names, s.databases.names = nil, nil
	}
	s.searched = time.Now()
	s.took = s.searched.Sub(began)
	return err
}

// searchCatalog finds the pages of a catalog in the buffers and in its file, and reads the names.
func (s *SharedNames) searchCatalog(c *sharedCatalog) error {
	dir := filepath.Join(s.reader.dataDir, "global")
	file, err := mappedFile(dir, c.oid)
	if err != nil {
		return err
	}
	places, err := s.reader.places(0, file)
	if err != nil {
		return err
	}
	pages := make(map[uint32][]byte)
	c.places = c.places[:0]
	for i := range places {
		p := &places[i]
		page, err := s.reader.page(p.descriptor, p.was, p.page)
		if err != nil {
			return err
		}
		if page != nil {
			pages[p.block] = page
			c.places = append(c.places, *p)
		}
	}
	buffered := maps.Clone(pages)
	if err := addFile(pages, dir, file); err != nil {
		return err
	}
	c.filed = make(map[uint32][]byte, len(pages)-len(buffered))
	for block, page := range pages {
		if buffered[block] == nil {
			c.filed[block] = page
		}
	}
	names, err := s.namesOf(pages)
	if err != nil {
		return err
	}
	c.names = names
	return nil
}

// quick reads the names from the same buffers as the last search; false: a search is needed.
func (s *SharedNames) quick(c *sharedCatalog) bool {
	l := &layout.Pages
	if len(c.places) > maxQuick {
		return false
	}
	pages := make(map[uint32][]byte, len(c.places)+len(c.filed))
	descriptor := make([]byte, l.BufferSize)
	for i := range c.places {
		p := &c.places[i]
		if s.reader.read(p.descriptor, descriptor) != nil || page32(descriptor, l.BufferState)&l.BufferValid != l.BufferValid {
			return false
		}
		page, err := s.reader.page(p.descriptor, p.was, p.page)
		if err != nil || page == nil {
			return false
		}
		pages[p.block] = page
	}
	maps.Copy(pages, c.filed)
	names, err := s.namesOf(pages)
	if err != nil {
		return false
	}
	for oid := range c.names {
		if names[oid] == nil { // it was dropped, or its row is on a new page
			return false
		}
	}
	c.names = names
	return true
}

// namesOf returns the names in pages of a catalog. If the current version of a row is known, only its name is in the result.
func (s *SharedNames) namesOf(pages map[uint32][]byte) (map[uint32][]string, error) {
	sure, possible := make(map[uint32][]string), make(map[uint32][]string)
	for _, page := range pages {
		err := eachRow(page, func(oid uint32, tuple []byte, name string) error {
			if name == "" {
				return errInconsistent
			}
			into := possible
			switch s.current(tuple) {
			case notCommitted:
				return nil
			case committed:
				into = sure
			}
			if !slices.Contains(into[oid], name) {
				into[oid] = append(into[oid], name)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for oid, names := range possible {
		for _, name := range names {
			if !slices.Contains(sure[oid], name) {
				sure[oid] = append(sure[oid], name)
			}
		}
	}
	return sure, nil
}

// current returns committed if a version of a row is the current one, and notCommitted if it is not.
func (s *SharedNames) current(tuple []byte) outcome {
	l := &layout.Pages
	mask := page16(tuple, l.TupleInfomask)
	inserted := committed
	switch {
	case mask&l.XminCommitted != 0: // with XminInvalid: the row is frozen
	case mask&l.XminInvalid != 0:
		return notCommitted
	default:
		inserted = s.log.of(page32(tuple, l.TupleXmin))
	}
	deleted := notCommitted
	switch {
	case page32(tuple, l.TupleXmax) == 0 || mask&(l.XmaxInvalid|l.XmaxOnlyLocksIt) != 0:
	case mask&l.XmaxCommitted != 0:
		deleted = committed
	case mask&l.XmaxIsMulti != 0: // the id of several transactions
		deleted = unknownOutcome
	default:
		deleted = s.log.of(page32(tuple, l.TupleXmax))
	}
	switch {
	case inserted == notCommitted || deleted == committed:
		return notCommitted
	case inserted == committed && deleted == notCommitted:
		return committed
	}
	return unknownOutcome
}
