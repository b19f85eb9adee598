package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
)

// batchRows is the number of rows of a row group that are read at a time.
const batchRows = 4096

// A number is the type of a numeric column.
type number interface{ int32 | int64 | float64 }

// A cursor reads the values of one column of a row group, page by page. If an earlier version wrote the file, the column may be
// missing. Its values are then zero.
type cursor[T any] struct {
	values []T // of the current batch
	pages  parquet.Pages
	page   []T // values of the current page that are not in a batch yet
	dict   []T // values of the dictionary in the field from
	from   parquet.Dictionary
	decode func(encoding.Values) []T
	entry  func(parquet.Value) T
}

// numbers returns a function that makes a cursor for a numeric column.
func numbers[T number](kind parquet.Kind, data func(*encoding.Values) []T, entry func(parquet.Value) T) func(*columns, string) *cursor[T] {
	return func(c *columns, name string) *cursor[T] {
		k := &cursor[T]{entry: entry, decode: func(v encoding.Values) []T { return data(&v) }}
		c.attach(name, kind, &k.pages, k.next)
		return k
	}
}

//nolint:gochecknoglobals // read only
var (
	int32Column   = numbers(parquet.Int32, (*encoding.Values).Int32, parquet.Value.Int32)
	int64Column   = numbers(parquet.Int64, (*encoding.Values).Int64, parquet.Value.Int64)
	float64Column = numbers(parquet.Double, (*encoding.Values).Double, parquet.Value.Double)
)

// textColumn returns a cursor for a column of texts. Equal texts share their memory if the page has a dictionary.
func textColumn(c *columns, name string) *cursor[string] {
	k := &cursor[string]{
		entry: func(v parquet.Value) string { return string(v.ByteArray()) },
		decode: func(v encoding.Values) []string {
			data, offsets := v.ByteArray()
			list := make([]string, max(0, len(offsets)-1))
			for i := range list {
				list[i] = string(data[offsets[i]:offsets[i+1]])
			}
			return list
		},
	}
	c.attach(name, parquet.ByteArray, &k.pages, k.next)
	return k
}

// boolColumn returns a cursor for a column of booleans.
func boolColumn(c *columns, name string) *cursor[bool] {
	k := &cursor[bool]{entry: parquet.Value.Boolean}
	c.attach(name, parquet.Boolean, &k.pages, k.next)
	return k
}

// next reads the next n values into k.values.
func (k *cursor[T]) next(n int) error {
	k.values = slices.Grow(k.values[:0], n)[:n]
	if k.pages == nil {
		clear(k.values)
		return nil
	}
	for done := 0; done < n; {
		if len(k.page) == 0 {
			if err := k.readPage(); err != nil {
				return err
			}
		}
		copied := copy(k.values[done:], k.page)
		k.page, done = k.page[copied:], done+copied
	}
	return nil
}

// readPage decodes the next page into k.page.
func (k *cursor[T]) readPage() error {
	page, err := k.pages.ReadPage()
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF // the column has fewer values than the row group
	}
	if err != nil {
		return err
	}
	defer parquet.Release(page)
	if page.NumNulls() > 0 {
		return errors.New("values are missing")
	}
	if page.NumValues() == 0 {
		return nil
	}
	values := page.Data()
	switch dict := page.Dictionary(); {
	case dict != nil:
		k.translate(dict, values.Int32())
	case k.decode != nil:
		k.page = slices.Clone(k.decode(values)) // Release lets the library use the page's memory again
	default:
		k.page = make([]T, page.NumValues())
		return k.readSingly(page)
	}
	return nil
}

// translate sets k.page to the values of a page, which has indexes into the dictionary of the column.
func (k *cursor[T]) translate(dict parquet.Dictionary, indexes []int32) {
	if k.from != dict {
		k.from, k.dict = dict, make([]T, dict.Len())
		for i := range k.dict {
			k.dict[i] = k.entry(dict.Index(int32(i)))
		}
	}
	k.page = make([]T, len(indexes))
	for i, index := range indexes {
		k.page[i] = k.dict[index]
	}
}

// readSingly reads the values of a page that has no dictionary, for a cursor without a decode function.
func (k *cursor[T]) readSingly(page parquet.Page) error {
	buffer := make([]parquet.Value, len(k.page))
	n, err := page.Values().ReadValues(buffer)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	k.page = k.page[:n]
	for i := range k.page {
		k.page[i] = k.entry(buffer[i])
	}
	return nil
}

// columns reads some columns of a row group side by side, a batch of rows at a time.
type columns struct {
	file   *parquetFile
	number int
	group  parquet.RowGroup
	left   int64
	next   []func(n int) error
	pages  []parquet.Pages
	err    error
}

func newColumns(p *parquetFile, group int) *columns {
	return &columns{file: p, number: group, group: p.groups[group], left: p.groups[group].NumRows()}
}

// attach opens a column. Its kind must be the kind that this version writes; otherwise batch returns an error.
func (c *columns) attach(name string, kind parquet.Kind, pages *parquet.Pages, next func(int) error) {
	leaf, found := c.group.Schema().Lookup(name)
	switch {
	case !found:
	case !leaf.Node.Leaf() || leaf.MaxDefinitionLevel > 0 || leaf.Node.Type().Kind() != kind:
		c.err = errors.Join(c.err, fmt.Errorf("the column %s has another type", name))
	default:
		if _, err := c.file.checkGroup(c.number, name); err != nil {
			c.err = errors.Join(c.err, err)
			break
		}
		*pages = c.group.ColumnChunks()[leaf.ColumnIndex].Pages()
		c.pages = append(c.pages, *pages)
	}
	c.next = append(c.next, next)
}

// batch reads the next rows, and returns their number; 0: there are no more.
func (c *columns) batch(ctx context.Context) (int, error) {
	n := int(min(batchRows, c.left))
	if err := errors.Join(c.err, ctx.Err()); err != nil || n == 0 {
		return 0, err
	}
	for _, next := range c.next {
		if err := next(n); err != nil {
			return 0, err
		}
	}
	c.left -= int64(n)
	return n, nil
}

func (c *columns) close() {
	for _, p := range c.pages {
		_ = p.Close()
	}
}
