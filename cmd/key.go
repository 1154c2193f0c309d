package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
)

// keyInfo is what `pglead key -o json` prints of a key.
type keyInfo struct {
	Key     string `json:"key"`
	ID      int64  `json:"id"`
	ClassID uint32 `json:"classid"`
	ObjID   uint32 `json:"objid"`
	SQL     keySQL `json:"sql"`
}

type keySQL struct {
	Try     string `json:"try"`
	TryXact string `json:"try_transaction"`
	Unlock  string `json:"unlock"`
	Holder  string `json:"holder"`
}

func newKeyInfo(key string) keyInfo {
	id := lockkey.SipHash24(key)
	return keyInfo{
		Key: key, ID: id.Number, ClassID: id.ClassID(), ObjID: id.ObjID(),
		SQL: keySQL{
			Try:     fmt.Sprintf("SELECT pg_try_advisory_lock(%s);", id),
			TryXact: fmt.Sprintf("SELECT pg_try_advisory_xact_lock(%s);", id),
			Unlock:  fmt.Sprintf("SELECT pg_advisory_unlock(%s);", id),
			Holder: fmt.Sprintf("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %d AND objid = %d AND objsubid = 1 AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database());",
				id.ClassID(), id.ObjID()),
		},
	}
}

func newKeyCmd(stdout io.Writer) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "key KEY...",
		Short: "Print a lock's number, and the SQL with which any program takes the same lock",
		RunE: func(_ *cobra.Command, keys []string) error {
			if len(keys) == 0 {
				return &usageError{err: errors.New("a key is missing"), hint: "pglead key invoice_gen/SUB-1234"}
			}
			if output != "text" && output != "json" {
				return usagef("--output %s: text or json", printable(output))
			}
			for _, key := range keys { // nothing is printed unless all is well
				if err := lockkey.Check(key); err != nil {
					return usagef("%s: %w", printable(key), err)
				}
			}
			for _, key := range keys {
				if err := printKey(stdout, newKeyInfo(key), output == "json"); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, or json: one object a line")
	return cmd
}

func printKey(w io.Writer, k keyInfo, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return enc.Encode(k)
	}
	_, err := fmt.Fprintf(w, `%s
  number    %d
  pg_locks  classid %d, objid %d, objsubid 1
  take      %s
  or        %s
  release   %s
  holder    %s
`, printable(k.Key), k.ID, k.ClassID, k.ObjID, k.SQL.Try, k.SQL.TryXact, k.SQL.Unlock, k.SQL.Holder)
	return err
}
