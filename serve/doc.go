// Package serve loads batches on other hosts, and feeds a trainer in any language.
//
// The contents of a batch depend only on (seed, epoch, position). So a client asks for a batch by its
// number; any server can answer, and none keeps any state. Servers may be killed, added and
// replaced while training goes on: each sample still comes once, in order.
//
// A [Server] speaks Arrow Flight. [Open] makes a dataset of one server or several: give this dataset to
// nwt.NewLoader or nwt.Tune, as any other. Programs in other languages ask for whole batches by
// Flight's DoGet:
//
//	GetFlightInfo  path [rank, world] → schema, batches per epoch
//	DoGet          ticket {"epoch": 3, "batch": 17, "rank": 0, "world": 8} → that batch
//	DoGet          … with "samples" and "order" of a state: "batch" counts from that state
//	DoGet          … with "partial": true: bad samples are left out, and named in the answer's "bad"
//	DoAction       "indices" with a ticket → the indices of that batch's samples, as JSON; nothing is loaded
//
// A ticket may say "version": 3; a server of another version then refuses it.
//
// A batch is one record batch. Its columns are the fields, as fixed-shape tensors, and for each
// ragged dimension a column of lengths.
package serve
