// Package jsonschema writes JSON Schemas (draft 2020-12) of Go types in the form in which encoding/json prints them, for tests.
// The descriptions in a schema are the comments of the types and their fields. The package must not know which types there are.
package jsonschema

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"
)

const (
	module = "pg_stat_backtrace/"
	ref    = "#/$defs/"
)

// Object is a JSON object. Its members are printed in alphabetical order.
type Object = map[string]any

// Generator makes schemas.
type Generator struct {
	// Root is the folder of the module.
	Root string
	// Given has the schemas of types that print their own JSON by a method. These schemas may refer to the definitions in Defs.
	Given map[reflect.Type]Object
	Defs  Object
	// Common has the descriptions of members whose fields have no comment, by the member's name.
	Common map[string]string
	// Strict forbids members that the schema does not have.
	Strict bool

	comments map[string]map[string]string // by the path of a package, and by "Type" or "Type.Field"
	defs     Object
	named    map[string]reflect.Type
	err      error
}

// Schema returns the schema, as JSON, of a document that is of one of the types.
func (g *Generator) Schema(title, description string, types ...reflect.Type) ([]byte, error) {
	g.defs, g.named, g.err = clone(g.Defs), map[string]reflect.Type{}, nil
	root := Object{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "description": description}
	if len(types) == 1 {
		root["$ref"] = g.of(types[0])["$ref"]
	} else {
		list := make([]any, len(types))
		for i, t := range types {
			list[i] = g.of(t)
		}
		root["anyOf"] = list
	}
	root["$defs"] = g.defs
	if g.err != nil {
		return nil, g.err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(root)
	return b.Bytes(), err
}

func (g *Generator) fail(t reflect.Type, why string) Object {
	if g.err == nil {
		g.err = fmt.Errorf("%s: %s", t, why)
	}
	return Object{}
}

// of returns the schema of a type, or a reference to it.
func (g *Generator) of(t reflect.Type) Object {
	if given, ok := g.Given[t]; ok {
		return given
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return Object{"type": "string", "format": "date-time"}
	case t.Kind() == reflect.Pointer:
		return g.of(t.Elem())
	case t.Implements(reflect.TypeFor[json.Marshaler]()), reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()):
		return g.fail(t, "it prints its own JSON, and Given lacks its schema")
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return Object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return Object{"type": "boolean"}
	case reflect.String:
		return Object{"type": "string"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return Object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return Object{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return Object{"type": "number"}
	case reflect.Slice:
		return Object{"type": "array", "items": g.of(t.Elem())}
	case reflect.Array:
		return Object{"type": "array", "items": g.of(t.Elem()), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Map:
		return Object{"type": "object", "additionalProperties": g.of(t.Elem())}
	case reflect.Struct:
		return g.structure(t)
	case reflect.Interface:
		return Object{}
	default:
		return g.fail(t, "its schema is unknown")
	}
}

// structure adds the schema of a struct type to the definitions, and returns a reference to it.
func (g *Generator) structure(t reflect.Type) Object {
	name := DefinitionName(t)
	if other, ok := g.named[name]; ok {
		if other != t {
			return g.fail(t, "another type has its name: "+other.String())
		}
		return Object{"$ref": ref + name}
	}
	g.named[name] = t
	o := Object{"type": "object"}
	g.defs[name] = o
	properties, required := Object{}, []string{}
	g.fields(t, properties, &required)
	o["properties"], o["required"] = properties, required
	if text := g.comment(t, ""); text != "" {
		o["description"] = replaceNames(text, t)
	}
	if g.Strict {
		o["additionalProperties"] = false
	}
	return Object{"$ref": ref + name}
}

// DefinitionName returns the name of a type in the definitions: the package, and the name without the word JSON.
func DefinitionName(t reflect.Type) string {
	name := regexp.MustCompile(`^(json|JSON)`).ReplaceAllString(t.Name(), "")
	return t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:] + "." + name
}

func (g *Generator) fields(t reflect.Type, properties Object, required *[]string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _ := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case tag == "-":
			continue
		case f.Anonymous && name == "":
			g.fields(f.Type, properties, required)
			continue
		case !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		s := g.of(f.Type)
		omitted := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		if strings.Contains(options, "string") {
			s = Object{"type": "string", "pattern": "^-?[0-9]+$"}
		}
		if f.Type.Kind() == reflect.Pointer && !omitted {
			s = orNull(s)
		}
		s = clone(s)
		if text := g.describe(t, f.Name, name); text != "" {
			s["description"] = replaceNames(text, t)
			if strings.HasPrefix(text, "Deprecated:") {
				s["deprecated"] = true
			}
		}
		properties[name] = s
		if !omitted {
			*required = append(*required, name)
		}
	}
}

func orNull(s Object) Object {
	if name, ok := s["type"].(string); ok {
		s = clone(s)
		s["type"] = []string{name, "null"}
		return s
	}
	return Object{"anyOf": []any{s, Object{"type": "null"}}}
}

func clone(s Object) Object {
	c := Object{}
	maps.Copy(c, s)
	return c
}

// describe returns the comment of a field. If the field has none, describe returns the comment of another field of the
// same type, if that comment mentions this field. Otherwise it returns the text in Common.
func (g *Generator) describe(t reflect.Type, field, name string) string {
	if text := g.comment(t, field); text != "" {
		return text
	}
	word := regexp.MustCompile(`\b` + field + `\b`)
	for i := range t.NumField() {
		if text := g.comment(t, t.Field(i).Name); word.MatchString(text) {
			return text
		}
	}
	return g.Common[name]
}

// comment returns the comment of a type, or of its field, in one line.
func (g *Generator) comment(t reflect.Type, field string) string {
	path := t.PkgPath()
	if g.comments[path] == nil {
		if g.comments == nil {
			g.comments = map[string]map[string]string{}
		}
		g.comments[path] = map[string]string{}
		if folder, ok := strings.CutPrefix(path, module); ok {
			g.read(filepath.Join(g.Root, folder), g.comments[path])
		}
	}
	key := t.Name()
	if field != "" {
		key += "." + field
	}
	return g.comments[path][key]
}

// read collects the comments of the types in a folder.
func (g *Generator) read(folder string, comments map[string]string) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: %w", folder, fs.ErrNotExist)
	}
	for _, name := range files {
		file, failure := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if failure != nil {
			err = failure
			break
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); ok && len(d.Specs) == 1 {
				if s, ok := d.Specs[0].(*ast.TypeSpec); ok {
					comments[s.Name.Name] = oneLine(d.Doc)
				}
			}
			s, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s.Doc != nil {
				comments[s.Name.Name] = oneLine(s.Doc)
			}
			if structure, ok := s.Type.(*ast.StructType); ok {
				for _, f := range structure.Fields.List {
					text := oneLine(f.Doc)
					if text == "" {
						text = oneLine(f.Comment)
					}
					for _, id := range f.Names {
						comments[s.Name.Name+"."+id.Name] = text
					}
				}
			}
			return true
		})
	}
	if err != nil && g.err == nil {
		g.err = err
	}
}

func oneLine(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	return strings.Join(strings.Fields(c.Text()), " ")
}

// replaceNames replaces the Go names of a type's fields in a comment by their JSON names, and nil by absent.
func replaceNames(text string, t reflect.Type) string {
	text = regexp.MustCompile(`\b(json|JSON)([A-Z])`).ReplaceAllString(text, "$2")
	text = regexp.MustCompile(`\bnil\b`).ReplaceAllString(text, "absent")
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || name == f.Name {
			continue
		}
		text = regexp.MustCompile(`\b`+f.Name+`\b`).ReplaceAllString(text, name)
	}
	return text
}
