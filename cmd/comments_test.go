package cmd

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNamesInComments: what a comment names by Type.Name, package.Name, variable.Name or a name in
// camelCase is declared. So a comment doesn't outlive what it speaks of.
func TestNamesInComments(t *testing.T) {
	code := names{members: map[string]map[string]bool{}, all: map[string]bool{}}
	files := code.readAll(t, "..")
	member := regexp.MustCompile(`(?:^|[^.\w])([A-Za-z]\w*)\.([A-Za-z]\w*)\b`)
	elsewhere := []string{
		"kB", "macOS",
		"allowHashing", "asLong", "hashString", "sipHash24", // .NET, Guava
		"asyncQueueAdvanceTail", "passwordFromFile", "resultFormat", // PostgreSQL, libpq
		"clearSignalHandlers", // Go's runtime
		"noteSender",          // assembly
	}
	camelCase := regexp.MustCompile(`\b[a-z]+[A-Z]\w*\b`)
	checked := 0
	for path, file := range files {
		for _, group := range file.Comments {
			for _, found := range member.FindAllStringSubmatch(group.Text(), -1) {
				members, ours := code.members[found[1]]
				if ours {
					checked++
				}
				// A variable's type isn't known here, so what follows it may be anybody's.
				declared := members[found[2]] || !ours && (!code.all[found[1]] || code.all[found[2]]) || slices.Contains(elsewhere, found[2])
				if !declared && !endsFile[found[2]] {
					t.Errorf("%s: a comment names %s.%s, which is not declared", path, found[1], found[2])
				}
			}
			for _, found := range camelCase.FindAllString(group.Text(), -1) {
				checked++
				if !code.all[found] && !slices.Contains(elsewhere, found) {
					t.Errorf("%s: a comment names %s, which is not declared", path, found)
				}
			}
		}
	}
	if checked < 500 {
		t.Errorf("only %d names were looked up", checked)
	}
}

// endsFile has the ends of files' names, such as lock.go, which look like a declaration.
var endsFile = map[string]bool{"go": true, "sql": true, "md": true, "rs": true, "crt": true, "sh": true, "c": true, "h": true, "txtar": true, "svg": true}

// names are those in this module's code. members are by type its methods and fields, and by package
// its declarations.
type names struct {
	members map[string]map[string]bool
	all     map[string]bool
}

func (n names) add(of, name string) {
	if n.members[of] == nil {
		n.members[of] = map[string]bool{}
	}
	n.members[of][name] = true
}

// readAll parses all Go files below a folder.
func (n names) readAll(t *testing.T, root string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err == nil {
			files[path] = file
			n.read(file)
		}
		return err
	})
	if err != nil || len(files) < 100 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	return files
}

func (n names) read(file *ast.File) {
	ast.Inspect(file, func(node ast.Node) bool {
		if name, ok := node.(*ast.Ident); ok {
			n.all[name.Name] = true
		}
		return true
	})
	within := strings.TrimSuffix(file.Name.Name, "_test")
	for _, declared := range file.Decls {
		switch declared := declared.(type) {
		case *ast.FuncDecl:
			n.add(within, declared.Name.Name)
			if declared.Recv != nil {
				n.add(receiver(declared.Recv.List[0].Type), declared.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range declared.Specs {
				n.readSpec(within, spec)
			}
		}
	}
}

func (n names) readSpec(within string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			n.add(within, name.Name)
		}
	case *ast.TypeSpec:
		n.add(within, spec.Name.Name)
		ast.Inspect(spec.Type, func(node ast.Node) bool {
			if field, ok := node.(*ast.Field); ok {
				for _, name := range field.Names {
					n.add(spec.Name.Name, name.Name)
				}
				if len(field.Names) == 0 { // embedded
					n.add(spec.Name.Name, receiver(field.Type))
				}
			}
			return true
		})
	}
}

// receiver is the name of a type, without its pointer, its package and its parameters.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.SelectorExpr:
		return of.Sel.Name
	case *ast.Ident:
		return of.Name
	}
	return ""
}
