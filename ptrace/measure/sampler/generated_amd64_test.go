package sampler

import (
	"reflect"
	"strings"
	"testing"
)

// TestSharedTypes: Go and C give each field of the shared types the same offset.
func TestSharedTypes(t *testing.T) {
	for _, c := range []struct{ own, programs any }{
		{rawTarget{}, samplerSampleTarget{}},
		{rawSample{}, samplerStackSample{}},
		{state{}, samplerCpuState{}},
		{request{}, samplerCpuRequest{}},
	} {
		own, programs := fieldsOf(c.own), fieldsOf(c.programs)
		if reflect.TypeOf(c.own).Size() != reflect.TypeOf(c.programs).Size() ||
			len(own) != len(programs) {
			t.Errorf("%T has %d bytes, %T %d", c.own, reflect.TypeOf(c.own).Size(), c.programs,
				reflect.TypeOf(c.programs).Size())
			continue
		}
		for i := range own {
			if own[i].Offset != programs[i].Offset || own[i].Type.Size() != programs[i].Type.Size() ||
				!strings.EqualFold(own[i].Name, programs[i].Name) {
				t.Errorf("%T: %s at %d, and %s at %d in the program", c.own, own[i].Name, own[i].Offset, programs[i].Name,
					programs[i].Offset)
			}
		}
	}
}

// fieldsOf returns the fields that have a name.
func fieldsOf(v any) (fields []reflect.StructField) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
		if f.Name != "_" {
			fields = append(fields, f)
		}
	}
	return fields
}
