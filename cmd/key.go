package cmd

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
)

// allSchemes is --key-scheme's word for every scheme at once.
const allSchemes = "all"

// keyInfo is what `pglead key -o json` prints about a key. ID is the signed 64 bits, even
// for a pair: two locks are the same if both ID and ObjSubID are.
type keyInfo struct {
	Key      string  `json:"key"`
	Scheme   string  `json:"scheme"`
	ID       int64   `json:"id"`
	IDText   string  `json:"id_text"` // for programs whose numbers are float64
	Pair     []int32 `json:"pair,omitempty"`
	ClassID  uint32  `json:"classid"`
	ObjID    uint32  `json:"objid"`
	ObjSubID int     `json:"objsubid"`
	SQL      keySQL  `json:"sql"`
}

type keySQL struct {
	Try     string `json:"try"`
	TryXact string `json:"try_transaction"`
	Unlock  string `json:"unlock"`
	Holder  string `json:"holder"`
}

// noKeyInfo is printed instead of keyInfo if the scheme does not take the key.
type noKeyInfo struct {
	Key    string `json:"key"`
	Scheme string `json:"scheme"`
	Error  string `json:"error"`
}

func newKeyInfo(key, scheme string, id lockkey.ID) keyInfo {
	arguments := strings.ReplaceAll(id.String(), ",", ", ")
	info := keyInfo{
		Key: key, Scheme: scheme, ID: id.Number, IDText: strconv.FormatInt(id.Number, 10),
		ClassID: id.ClassID(), ObjID: id.ObjID(), ObjSubID: id.ObjSubID(),
		SQL: keySQL{
			Try:     fmt.Sprintf("SELECT pg_try_advisory_lock(%s);", arguments),
			TryXact: fmt.Sprintf("SELECT pg_try_advisory_xact_lock(%s);", arguments),
			Unlock:  fmt.Sprintf("SELECT pg_advisory_unlock(%s);", arguments),
			Holder: fmt.Sprintf("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %d AND objid = %d AND objsubid = %d"+
				" AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database());",
				id.ClassID(), id.ObjID(), id.ObjSubID()),
		},
	}
	if id.Pair {
		info.Pair = []int32{int32(id.ClassID()), int32(id.ObjID())}
	}
	return info
}

func newKeyCmd(u *ui) *cobra.Command {
	o := newOptions(u)
	cmd := &cobra.Command{
		Use:   "key KEY...",
		Short: "Print a lock's number, and the SQL that takes the same lock",
		Long: `Print a lock's number, and the SQL with which any program takes the same lock.

How a key becomes a number:
` + schemesHelp(),
		Example: `  pglead key invoice_gen/SUB-1234
  pglead key --key-scheme with-advisory-lock nightly
  pglead key --key-scheme int -- -5
  pglead key --key-scheme all nightly`,
		RunE: func(cmd *cobra.Command, keys []string) error {
			if len(keys) == 0 {
				return usagef("pglead key invoice_gen/SUB-1234", "a key is missing")
			}
			schemes := lockkey.Schemes()
			if o.keyScheme != allSchemes {
				scheme, err := o.scheme()
				if err != nil {
					return err
				}
				schemes = []lockkey.Scheme{scheme}
			}
			return printKeys(cmd.OutOrStdout(), schemes, keys, o.output.value == "json")
		},
	}
	o.register(cmd, "key-scheme output")
	cmd.Flags().Lookup("key-scheme").Usage = "how the key becomes a number: a scheme's `NAME`, or all"
	cmd.Flags().Lookup("output").Usage += ": one object a line"
	return cmd
}

// scheme is the scheme of --key-scheme.
func (o *options) scheme() (lockkey.Scheme, error) {
	scheme, ok := lockkey.SchemeByName(o.keyScheme)
	switch {
	case o.keyScheme == allSchemes:
		return scheme, usagef("", "only pglead key takes --key-scheme %s", allSchemes)
	case !ok:
		return scheme, usagef("pglead key --help lists them", "--key-scheme %s is not known", printable(o.keyScheme))
	}
	return scheme, nil
}

func schemesHelp() string {
	var b strings.Builder
	for _, s := range lockkey.Schemes() {
		fmt.Fprintf(&b, "  %-18s  %s\n", s.Name, s.About)
	}
	return b.String()
}

// printKeys prints what each scheme makes of the keys. That a scheme does not take a key is a
// failure if it is the only scheme. With all of them people find out whose number is in pg_locks.
func printKeys(w io.Writer, schemes []lockkey.Scheme, keys []string, asJSON bool) error {
	const columns = "  %-18s  %-23v  %-10v  %-10v  %-8v  %s\n"
	one := len(schemes) == 1
	var b strings.Builder // nothing is printed unless all is well
	for _, key := range keys {
		if err := lockkey.Check(key); err != nil {
			return usagef("", "%s: %w", printable(key), err)
		}
		if !asJSON {
			b.WriteString(printable(key) + "\n")
		}
		if !asJSON && !one {
			fmt.Fprintf(&b, columns, "scheme", "number", "classid", "objid", "objsubid", "what it is")
		}
		for _, s := range schemes {
			id, refusal := s.ID(key)
			k := newKeyInfo(key, s.Name, id)
			var err error
			switch {
			case refusal != nil && one:
				return usagef("", "%s: %w", printable(key), refusal)
			case refusal != nil && asJSON:
				err = writeJSON(&b, noKeyInfo{Key: key, Scheme: s.Name, Error: refusal.Error()})
			case asJSON:
				err = writeJSON(&b, k)
			case refusal != nil:
				fmt.Fprintf(&b, columns, s.Name, "-", "-", "-", "-", refusal)
			case one:
				fmt.Fprintf(&b, "  number    %s\n  pg_locks  classid %d, objid %d, objsubid %d\n  take      %s\n  or        %s\n  release   %s\n  holder    %s\n",
					id, k.ClassID, k.ObjID, k.ObjSubID, k.SQL.Try, k.SQL.TryXact, k.SQL.Unlock, k.SQL.Holder)
			default:
				fmt.Fprintf(&b, columns, s.Name, id, k.ClassID, k.ObjID, k.ObjSubID, s.About)
			}
			if err != nil {
				return err
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
