// Package vision turns photographs into tensors, as torchvision does: it decodes,
// crops, resizes, mirrors, changes colours and normalizes, straight into a
// sample's place in its batch.
//
// Make a [Pipeline] once, from transforms with torchvision's names and defaults:
//
//	pipeline, err := vision.New([]vision.Transform{
//		vision.RandomResizedCrop{Size: vision.Square(224)},
//		vision.RandomHorizontalFlip{},
//		vision.ImageNet,
//	})
//
// [Pipeline.Load] then loads the bytes of a picture, wherever they come from, into a
// field of a sample. [OpenFolder] makes a dataset of a folder of pictures that has
// one folder per class.
//
// # Several pictures of a sample
//
// [Pipeline.Load] draws anew at each call. A picture and its mask, the frames of a clip, or a stereo
// pair are cropped alike if they are loaded by one [Draw], as torchvision's transforms.v2 do to a
// tuple; boxes and points too:
//
//	masks, err := pipeline.Masks(nwt.Uint8, 255)   // nearest pixels, no colours; 255 outside of the picture
//	…
//	draw, err := pipeline.Draw(dst, 0, photo)      // in Load
//	…
//	err = draw.Load(masks, 1, mask)
//	box, share := draw.Box(vision.Box{left, top, right, bottom})
//
// [Pipeline.Beside] makes a pipeline for pictures of other types, or with other colours.
//
// # What is fast about it
//
// Crops, resizes and flips are worked out first, and become one resampling of
// the part of the picture that is needed. A JPEG file is decoded down to the
// crop's last row only, and at half its size or less if at least two pixels
// remain for each pixel of the result. Its planes are resampled before their colours
// are converted. On amd64 CPUs with AVX2, resampling and conversion to float32 are in
// assembly; elsewhere plain Go makes the same results, to the bit. Each worker keeps
// a decoder and its buffers, so that a JPEG file costs no allocation, unless it has
// unusual colours or is huge.
//
// # What decodes
//
// JPEG files are decoded by libjpeg-turbo, version 2.0 or newer, if [Turbo] finds it
// at run time: libturbojpeg.so.0 on Linux, libturbojpeg.0.dylib on macOS, both in
// programs built with cgo or the tag nwt_purego, and turbojpeg.dll or
// libturbojpeg.dll on Windows. If it isn't found, this package decodes them: the pixels
// are the same to the bit, but it never decodes at a smaller size, and of baseline files
// only the part that a crop needs. It always decodes CMYK, RGB and unusual sampling, and
// files of which libjpeg-turbo has a warning to give; so files that are cut are errors with
// both. Only files with arithmetic coding need the library.
//
// Damaged codes are noticed only if they aren't codes, or don't end where the picture does.
// In Go that is seen more often, since libjpeg-turbo takes a code that no table has for a zero.
// Of 2 000 random crops of a photograph of 500 × 375, each after 8 bytes of its codes were
// overwritten, 109 were errors in Go and 84 of these with libjpeg-turbo; the others loaded, with
// wrong pixels if the crop had them. To read the codes in Go too would cost half of the speed.
//
// A JPEG file is whole if the codes of all its pixels are there: in a file of several scans,
// all bits of all coefficients. Bytes between its segments,
// before a restart marker or behind the last row are passed over, as by Pillow and
// torchvision. A file that is cut is an error for every crop.
//
// PNG, GIF, WebP, BMP and TIFF are decoded in Go, and so is whatever else the program has
// registered with [image.RegisterFormat]. Of an animation, the first picture is
// taken. If it is smaller than the frame, there is black around it; in a GIF file, the
// transparent colour or else the background, where Pillow takes the first colour of the
// palette. If it lies outside of a GIF file's screen, the screen grows. Of 16 bits the upper eight are taken, of grey pictures too: Pillow makes white
// of every grey above 255. TIFF files are turned as they say, as by Pillow.
// docs/reliability.md lists the kinds of files that Pillow loads and this package doesn't.
//
// # When nobody waits any more
//
// A picture may take seconds, and a bad one of 64 scans half a minute. So work on it ends
// soon after its context, with an error that wraps the context's cause: after a row of
// blocks, a row of pixels, or some kilobytes of the file. It is the context of the call of
// Load that the sample is loaded by; the call needn't pass it on. It ends if the epoch is
// left, or if [nwt.WithTimeout] gives the call up. Two decoders can't be asked to stop.
// They go on for up to the following CPU time, measured with pictures of 89 megapixels on
// an AMD EPYC:
//
//   - libjpeg-turbo: 0.8 s instead of 9.4 s. If a file may take more than some tenths of a
//     second, the library gets a copy of it, which is overwritten by ends of the picture when
//     the context ends.
//   - lossy WebP: 13 s for a bad file, 3.2 s for a good one: all of the decoding, since the
//     decoder has read the whole file before it begins; lossless WebP: 1.6 s if the file
//     is smaller than 4 kB, otherwise some milliseconds.
//
// A read of a file system that doesn't answer can't be ended either, nor a format that
// the program has registered and that has all of the file in memory.
//
// # What is random
//
// All random numbers come from [nwt.Sample.Rand]: what a batch holds doesn't
// depend on the number of workers.
package vision
